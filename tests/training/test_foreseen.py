"""Gradients formed in the forward pass: when the loss's slopes are foreseen, and that the step is the same either way."""

from __future__ import annotations

FORESEEN = {
    "grpo": ("scoring=grpo",),
    "entropy": ("scoring=grpo", "scoring.entropy_coef=0.01"),
    "sequence ratio": ("scoring=gspo",),
    "likelihood": ("scoring=cispo",),
    "selected tokens": ("scoring=high_entropy_tokens",),
}
NOT_FORESEEN = {
    "listwise": ("scoring=listwise",),
    "token KL": ("scoring=grpo", "reference.kl_beta=0.05"),
    "old log-probs": ("scoring=grpo", "optimization.num_iterations=2"),
    "several passes": ("scoring=grpo", "scoring.batching.logprob_chunk_size=3"),
}
