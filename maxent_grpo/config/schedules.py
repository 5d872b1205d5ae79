"""Names of learning-rate schedules, kept here so that a wrong one is refused before transformers is imported."""

LR_SCHEDULES = (
    "linear",
    "cosine",
    "cosine_with_restarts",
    "polynomial",
    "constant",
    "constant_with_warmup",
    "inverse_sqrt",
)
"""The names of transformers' ``get_scheduler`` that need no more than warm-up and length."""

LR_SCHEDULES_LEFT_OUT = {
    "cosine_with_min_lr": "needs a minimal learning rate, which has no setting",
    "cosine_warmup_with_min_lr": "needs a minimal learning rate, which has no setting",
    "warmup_stable_decay": "needs the number of decay steps, which has no setting",
    "reduce_lr_on_plateau": "needs a measured value at each step",
    "greedy": "needs a measured value at each step",
}
"""The remaining names, each with the reason why it cannot be chosen."""
