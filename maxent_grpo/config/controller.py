"""`controller`: what adapts tau and beta during training."""

from dataclasses import dataclass, field

from maxent_grpo.training.types.choices import KlLaw, KlTarget, TargetSchedule
from maxent_grpo.training.types.runtime import ControllerPaths

TAU, BETA, KL_BETA = "scoring.weighting.tau", "scoring.weighting.beta", "scoring.kl_beta"
"""The coefficients that a controller can move; their configured value is where it starts."""

LEAVES_NO_ZERO = (KlLaw.multiplicative, KlLaw.halving, KlLaw.pi)
"""Laws that multiply, so that a coefficient of 0 stays 0."""

SMALLEST_BETA = 1e-6
"""Where those laws stop by default, so that a coefficient can grow again."""


@dataclass(slots=True)
class ControllerConfig:
    """Fields that every controller has."""

    paths: ControllerPaths = field(default_factory=ControllerPaths)

    def adapted(self) -> tuple[str, ...]:
        """Dotted paths of the coefficients that the controller moves."""
        return ()

    def bounds(self) -> dict[str, tuple[float, float]]:
        """Dotted path of each bounded coefficient to its smallest and largest value."""
        return {}


@dataclass(slots=True)
class FixedControllerConfig(ControllerConfig):
    """tau, beta and the KL coefficient stay as configured."""


@dataclass(slots=True)
class TargetScheduleConfig:
    """How the target moves with the optimiser step; it starts from `target_fraction`."""

    kind: TargetSchedule = TargetSchedule.constant
    """`constant`, `linear` from `target_fraction` to `final`, or `peak`: from `target_fraction` up or down to `peak`, then to `final`."""
    peak: float = 0.8
    """Target fraction at `peak_step`."""
    peak_step: int = 50
    """Optimiser step of the peak [steps]."""
    final: float = 0.3
    """Target fraction at `horizon` and after."""
    horizon: int = 200
    """Optimiser step at which the schedule ends [steps]."""


@dataclass(slots=True)
class TauControllerConfig(ControllerConfig):
    """Fields of the controllers that move tau."""

    tau_min: float = 1e-3
    """Smallest tau."""
    tau_max: float = 10.0
    """Largest tau."""

    def adapted(self) -> tuple[str, ...]:
        """tau."""
        return (TAU,)

    def bounds(self) -> dict[str, tuple[float, float]]:
        """tau between tau_min and tau_max."""
        return {TAU: (self.tau_min, self.tau_max)}


@dataclass(slots=True)
class EntropyControllerConfig(TauControllerConfig):
    """Moves tau step by step so that the entropy of the target weights goes to a share of what tau can reach."""

    target_fraction: float = 0.5
    """Target f: the mean weight entropy of informative groups goes to low + f (high - low), low being the entropy at tau = 0 and high the log of the group size."""
    schedule: TargetScheduleConfig = field(default_factory=TargetScheduleConfig)
    learning_rate: float = 0.05
    """Change of log tau per step and nat of error [per nat]."""
    ema: float = 0.9
    """Smoothing rho of the measured entropy: e = rho e + (1 - rho) H; 0 takes each measurement as it is."""
    warmup_steps: int = 20
    """First optimiser steps, in which the entropy is measured and tau stays [steps]."""


@dataclass(slots=True)
class EffectiveSizeControllerConfig(TauControllerConfig):
    """Solves tau anew for each step's groups so that the effective size exp(H(w)) of the weights meets a target."""

    target_size: float = 4.0
    """Target of the mean of exp(H(w)) over informative groups; between 1 and generation.num_generations [completions]."""


@dataclass(slots=True)
class KlControllerConfig(ControllerConfig):
    """Moves the KL coefficient or the listwise beta so that its divergence goes to a target."""

    target: KlTarget = KlTarget.kl_beta
    """`kl_beta` holds the token KL of the policy to the reference by `scoring.kl_beta`; `listwise_beta` holds KL(w || pi_ref) over the group by `scoring.weighting.beta`."""
    target_kl: float = 0.05
    """Target K* of the divergence: the mean k3 per token, or the mean over informative groups [nats]."""
    law: KlLaw = KlLaw.multiplicative
    """With e = KL / K* - 1: `multiplicative` beta (1 + clip(e) / horizon), `additive` beta + learning_rate (KL - K*), `halving` (PPO) beta / 2 below K* / 1.5 and 2 beta above 1.5 K*, `pi` log beta = log beta_0 + gain e + integral_gain sum(e)."""
    clip: float = 0.2
    """Largest relative error that `multiplicative` acts on."""
    horizon: float = 10.0
    """Steps over which `multiplicative` spreads a correction: one step changes beta by clip / horizon at most [steps]."""
    learning_rate: float = 0.1
    """Change of beta per step and nat of error under `additive` [per nat]."""
    gain: float = 0.5
    """Proportional gain of `pi`, in log beta per unit of relative error."""
    integral_gain: float = 0.1
    """Integral gain of `pi`, in log beta per step and unit of relative error."""
    beta_min: float | None = None
    """Smallest coefficient; null is 0 under `additive` and 1e-6 under the other laws, which never leave 0."""
    beta_max: float = 10.0
    """Largest coefficient."""

    def adapted(self) -> tuple[str, ...]:
        """The coefficient of the target."""
        return (KL_BETA,) if self.target is KlTarget.kl_beta else (BETA,)

    def bounds(self) -> dict[str, tuple[float, float]]:
        """The coefficient between beta_min, with null settled, and beta_max."""
        lowest = SMALLEST_BETA if self.law in LEAVES_NO_ZERO else 0.0
        return {self.adapted()[0]: (lowest if self.beta_min is None else self.beta_min, self.beta_max)}
