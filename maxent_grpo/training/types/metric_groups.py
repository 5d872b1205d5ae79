"""What the metrics of one prefix have in common. No torch."""

from __future__ import annotations

from maxent_grpo.training.types.metric_info import MetricGroup

GROUPS: dict[str, MetricGroup] = {
    "reward/": MetricGroup(
        "What the completions of the step earned; with scoring.dynamic_sampling.enabled=true those of the groups that were "
        "kept, so that reward/drawn_mean alone speaks for the training rows.",
        "training.metrics.step_metrics",
    ),
    "sampling/": MetricGroup(
        "Drawing of prompts until the groups of a rollout carry a signal.",
        "training.dynamic_sampling.drawing_metrics",
        "the first optimiser step of a rollout, with scoring.dynamic_sampling.enabled=true",
    ),
    "advantage/": MetricGroup("Credit after the group's baseline.", "training.metrics.step_metrics"),
    "completion/": MetricGroup("Lengths and answers of the step's completions.", "training.metrics.step_metrics"),
    "loss/": MetricGroup(
        "Terms of the loss, summed over the step's slices; divided by counts of the whole step.",
        "training.loss.compute_loss",
    ),
    "policy/": MetricGroup(
        "The policy on the step's trained tokens, before the update; with scoring.batching.skip_zero_signal=true those of the "
        "groups that were scored.",
        "training.diagnostics.StepSums",
    ),
    "reference/": MetricGroup(
        "The reference on the rollout that the step belongs to; with scoring.batching.skip_zero_signal=true on its groups that "
        "were scored.",
        "training.scoring.reference.reference_from_tokens",
    ),
    "weights/": MetricGroup(
        "The target weights w and the policy p over each group that takes part in the listwise term; all but weights/groups with "
        "scoring.batching.skip_zero_signal=true over those that were scored.",
        "training.metrics.step_metrics",
    ),
    "controller/": MetricGroup("Coefficients as the step used them.", "training.metrics.step_metrics"),
    "optim/": MetricGroup("The optimiser's step.", "training.optim.apply_gradients"),
    "generation/": MetricGroup(
        "Sampling; counts are of all processes, rounds and weights of what they did together.",
        "training.metrics.generation_metrics",
    ),
    "mismatch/": MetricGroup(
        "The weight pi_old / mu of the trainer's probability to the sampler's, over the trained tokens whose log-prob the sampler "
        "reported and that were scored; at the level of scoring.mismatch.mode, per token with bypass. Both are of the same weights, so "
        "that it is 1 but for noise; with generation.async_steps=1 pi_old is of the weights that the rollout began to train with.",
        "training.diagnostics.StepSums",
    ),
    "scoring/": MetricGroup(
        "Work of scoring, of all processes. All but scoring/skipped_sequences depend on how a step is shared out: each process cuts its own "
        "groups into slices, and makes passes over one row where it has fewer slices than another.",
        "training.scoring.policy.ScoringCounters",
    ),
    "data/": MetricGroup("Position in the training rows.", "training.metrics.step_metrics"),
    "eval/": MetricGroup(
        "Held-out measurement.",
        "training.evaluation.evaluate.evaluate",
        "step 0, every evaluation.every_n_steps, the last step; with evaluation.enabled=true",
    ),
    "time/": MetricGroup(
        "Where the time went since the line before; not reproduced by an equal run. A phase that did not happen is absent. "
        "What follows a line, writing it and the checkpoint, stands on the next one, and of the last step on none. Of several processes "
        "the main one's, whose phases hold what it waits for the others.",
        "training.clock.PhaseClock",
    ),
    "throughput/": MetricGroup(
        "Speed of all processes together: the work of all over the main process's time, and for utilisation over the rate of its "
        "machine times their number; not reproduced by an equal run. docs/speed.md says what is counted.",
        "training.throughput.throughput_metrics",
    ),
    "memory/": MetricGroup(
        "Memory, of the process that has most; not reproduced by an equal run.", "training.metrics.machine_metrics"
    ),
}
"""Prefix to what its metrics are about, where they are measured, and on which lines they stand."""
