"""The learning-rate schedules are those of transformers, bit for bit."""

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import get_scheduler

from maxent_grpo.config.schedules import LR_SCHEDULES
from maxent_grpo.objective.learning_rate import LOWEST_RATE, learning_rate_factor


@pytest.mark.parametrize("name", LR_SCHEDULES)
@pytest.mark.parametrize(("warmup", "total"), [(0, 9), (3, 9), (1, 200), (8, 9)])
def test_a_schedule_is_that_of_transformers(name: str, warmup: int, total: int) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=3e-4)
    theirs = get_scheduler(name, optimizer, num_warmup_steps=warmup, num_training_steps=total)
    assert isinstance(theirs, LambdaLR)
    ours = learning_rate_factor(name, warmup=warmup, total=total, peak=3e-4)
    steps = range(total + 3)  # also behind the end, where a run continued with fewer steps may stand
    assert [ours(step) for step in steps] == [float(theirs.lr_lambdas[0](step)) for step in steps]


def test_a_polynomial_schedule_needs_a_peak_above_its_end() -> None:
    with pytest.raises(ValueError, match="not below the learning rate"):
        learning_rate_factor("polynomial", warmup=0, total=3, peak=LOWEST_RATE)
