"""The models that both trainers start from."""

from pathlib import Path

import pytest
from support.parity_case import distant_logp, moved_policy, reference_model
from torch import Tensor
from transformers import PreTrainedModel


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds the reference model."""
    path = tmp_path_factory.mktemp("reference")
    reference_model().save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def policy() -> PreTrainedModel:
    """The reference, moved."""
    return moved_policy()


@pytest.fixture(scope="module")
def old_logp(policy: PreTrainedModel) -> Tensor:
    """[N, T] under the behaviour policy."""
    return distant_logp(policy)
