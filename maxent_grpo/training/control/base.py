"""What a controller is: it sees a step's groups before their weights are fixed, and the step's measurements after it.

Every number that reaches a controller is the same on every process, so every process moves its coefficients alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from maxent_grpo.config.controller import ControllerConfig
from maxent_grpo.errors import CheckpointError
from maxent_grpo.objective.weights import maxent_log_weights
from maxent_grpo.training.types.entropy import TokenEntropy, WeightEntropy
from maxent_grpo.training.types.runtime import ScoringSettings
from maxent_grpo.training.types.weighting import ControllerValues

STATE_VERSION = 1
"""Format of the states below; a state of another version is refused."""


@dataclass(frozen=True)
class InformativeGroups:
    """The groups of a step whose utilities are not all equal; the weights of any other are the same for every tau."""

    log_q: Tensor
    """log q [P, G], float64; -inf where a completion takes no part."""
    log_reference: Tensor | None
    """Reference score of each completion [P, G] [nats]; None without a reference."""
    valid: Tensor
    """Completions that take part [P, G]; at least two in every group."""

    def __len__(self) -> int:
        return self.log_q.shape[0]

    def log_weights(self, *, tau: float, beta: float) -> Tensor:
        """log w [P, G] of the target weights at these coefficients."""
        reference = torch.zeros_like(self.log_q) if self.log_reference is None else self.log_reference
        return maxent_log_weights(self.log_q, reference, self.valid, tau=tau, beta=beta)


@dataclass(frozen=True, slots=True)
class StepMeasurement:
    """What one optimiser step measured, over all processes, with the coefficients and the policy before its update.

    Means over groups are over informative groups only. None stands for what the step did not measure: no informative
    group, no reference, no entropy.
    """

    num_informative: int
    """Informative groups of the step."""
    weight_entropy: WeightEntropy | None = None
    """Mean H(w)."""
    lowest_weight_entropy: WeightEntropy | None = None
    """Mean H(w) at tau = 0: log of the number of best completions, or with beta > 0 that of the KL-regularised target."""
    highest_weight_entropy: WeightEntropy | None = None
    """Mean H(w) for tau to infinity: log of the number of completions that take part."""
    group_kl: float | None = None
    """Mean KL(w || pi_ref), pi_ref renormalised over the group [nats]."""
    token_kl: float | None = None
    """k3 of the policy to the reference, mean over the trained tokens [nats]."""
    token_entropy: TokenEntropy | None = None
    """Token entropy of the policy."""


class Controller(Protocol):
    """Adapts the coefficients, one update per optimiser step."""

    @property
    def values(self) -> ControllerValues:
        """The coefficients in force; a new object after every change."""
        ...

    def prepare(self, groups: Callable[[], InformativeGroups]) -> None:
        """See a step's groups before their weights are fixed; calling ``groups`` gathers those of all processes."""
        ...

    def update(self, measured: StepMeasurement) -> None:
        """Learn from a step's measurements."""
        ...

    def metrics(self) -> dict[str, float]:
        """What the controller did in the last step, by names of the table of metrics."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything the next update depends on, in numbers that JSON keeps exactly."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state.

        Raises:
            CheckpointError: the state is not one of this kind of controller.
        """
        ...


@dataclass
class ControllerState:
    """The state of the simplest controller; others add fields. All are numbers, or None where that is their default."""

    tau: float
    beta: float
    kl_beta: float
    num_updates: int = 0
    """Updates so far, skipped ones included: the global optimiser step."""

    @property
    def values(self) -> ControllerValues:
        """The coefficients."""
        return ControllerValues(self.tau, self.beta, self.kl_beta)


Config = TypeVar("Config", bound=ControllerConfig)
State = TypeVar("State", bound=ControllerState)


class StatefulController(Generic[Config, State]):
    """What every controller does with its state: it holds one, gives it out, and goes on from a saved one.

    A subclass names its ``kind`` and ``state_type``, and says what ``update`` and ``metrics`` do.
    """

    kind: ClassVar[str]
    state_type: type[State]

    def __init__(self, config: Config, values: ControllerValues) -> None:
        self._config = config
        self._state: State = self.state_type(values.tau, values.beta, values.kl_beta)

    @property
    def values(self) -> ControllerValues:
        """The coefficients in force."""
        return self._state.values

    def prepare(self, groups: Callable[[], InformativeGroups]) -> None:
        """Most laws look at measurements only."""

    def state_dict(self) -> dict[str, Any]:
        """Kind, version and every field of the state."""
        return dump_state(self.kind, self._state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue another controller of this kind: its coefficients, its memory and its counters.

        Raises:
            CheckpointError: the state is not one of this kind, or its coefficients lie outside this run's bounds.
        """
        loaded = parse_state(self.kind, self.state_type, state)
        require_inside(self._config, loaded.values)
        self._state = loaded


def initial_values(scoring: ScoringSettings) -> ControllerValues:
    """The configured coefficients."""
    return ControllerValues(scoring.weighting.tau, scoring.weighting.beta, scoring.kl_beta)


def dump_state(kind: str, state: ControllerState) -> dict[str, Any]:
    """Kind, version and fields of a state."""
    return {"kind": kind, "version": STATE_VERSION, **asdict(state)}


def parse_state(kind: str, state_type: type[State], state: Mapping[str, Any]) -> State:
    """The state of a controller of this kind.

    Raises:
        CheckpointError: it is another controller's, of another version, or not made of finite numbers.
    """
    if state.get("kind") != kind:
        raise CheckpointError(
            f"controller state is of kind {state.get('kind')!r}, controller={kind} cannot continue it: "
            "choose the controller that wrote it"
        )
    if state.get("version") != STATE_VERSION:
        raise CheckpointError(
            f"controller state is of version {state.get('version')!r}, this program reads version {STATE_VERSION}: "
            "start the controller anew, without controller.paths.resume_from"
        )
    given = {name: value for name, value in state.items() if name not in ("kind", "version")}
    expected = {field.name for field in fields(state_type)}
    if given.keys() != expected:
        raise CheckpointError(
            f"controller state of kind {kind!r} is damaged: it lacks {sorted(expected - given.keys())} and has "
            f"{sorted(given.keys() - expected)} besides; use the file as a run wrote it"
        )
    optional = {field.name for field in fields(state_type) if field.default is None}
    coefficients = ("tau", "beta", "kl_beta")
    wrong = {
        name: value
        for name, value in given.items()
        if not (value is None and name in optional) and not _is_number(value, at_least_zero=name in coefficients)
    }
    if wrong:
        raise CheckpointError(f"controller state of kind {kind!r} is damaged: {wrong}; use the file as a run wrote it")
    return state_type(**given)


def known(value: float | None) -> bool:
    """Whether a measurement can be learnt from: it was made, and it is finite."""
    return value is not None and math.isfinite(value)


def require_inside(config: ControllerConfig, values: ControllerValues) -> None:
    """Refuse coefficients of another run that lie outside the bounds of this one.

    Raises:
        CheckpointError: one does; names it.
    """
    for path, (low, high) in config.bounds().items():
        name = path.rpartition(".")[2]
        value = getattr(values, name)
        if not low <= value <= high:
            raise CheckpointError(
                f"controller state has {name}={value}, outside this run's bounds {low} and {high}: widen the bounds, or start "
                "the controller anew, without controller.paths.resume_from"
            )


def _is_number(value: object, *, at_least_zero: bool) -> bool:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
        return False
    return value >= 0 or not at_least_zero
