"""`evaluation`: held-out measurement before, during and after training."""

from dataclasses import dataclass, field

from maxent_grpo.training.types.choices import ExactFigures, Pooling

SEED_MARK = "{seed}"
"""What stands for the number of the seed in `evaluation.seed_eval.template`."""
MAX_EXACT_ANSWERS = 6561
"""Most answers of a problem for which `evaluation.exact=auto` enumerates them."""


@dataclass(slots=True)
class SeedEvaluationConfig:
    """Ask every held-out prompt again with a seed tag, and look whether the policy turns seeds into different answers."""

    enabled: bool = False
    """Ask each prompt once more for every seed: pass@1 per seed, modes found over seeds, and a probe that tells seeds apart."""
    num_seeds: int = 4
    """Different tags, numbered from 0 on [seeds]."""
    samples_per_seed: int = 4
    """Completions of each prompt under each tag [completions]."""
    template: str = " [seed={seed}]"
    """Text appended to the last message of the prompt, before the chat template; `{seed}` stands for the number."""
    pooling: Pooling = Pooling.mean
    """Hidden state that the probe sees: the `mean` over a completion's tokens in the last layer, or the `last` token's."""


@dataclass(slots=True)
class EvaluationConfig:
    """Sampled evaluation on the held-out rows; its random numbers are separate from training's."""

    enabled: bool = True
    """Evaluate before and after training (and in between, see every_n_steps)."""
    every_n_steps: int | None = 50
    """Optimiser steps between evaluations; null evaluates only before and after training [steps]."""
    batch_size: int = 32
    """Prompts sampled in one call; any number [prompts]."""
    num_samples: int = 32
    """Completions sampled for each held-out prompt [completions]."""
    ks: list[int] = field(default_factory=lambda: [1, 8])
    """The k of pass@k, maj@k, distinct@k and coverage@k; each at most num_samples."""
    seed: int = 20_000
    """Seed of the evaluation's sampling; the same at every evaluation and for every run seed."""
    temperature: float | None = None
    """Temperature of the evaluation's samples; null is that of training, generation.temperature."""
    top_p: float | None = None
    """Nucleus of the evaluation's samples; null is that of training, generation.top_p."""
    greedy: bool = True
    """Also take each prompt's most likely completion, token by token (temperature 0), and report the share that is right."""
    exact: ExactFigures = ExactFigures.auto
    """Figures without sampling noise from the probability of every answer there is, at temperature 1 over the whole vocabulary: `auto` where the task can list its answers and a problem has at most 6561, `always` where it can list them, `never`."""
    seed_eval: SeedEvaluationConfig = field(default_factory=SeedEvaluationConfig)
