"""The output head alone: log-probability and entropy of N positions, forward and backward, in float32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from benchmarks.process import timed


@dataclass(frozen=True)
class Work:
    """N positions of width H under a head of V rows, of which a share are completions."""

    vocabulary: int = 151_936
    positions: int = 1024
    width: int = 256
    share: float = 1.0
    laps: int = 3

    @property
    def scored(self) -> int:
        """Positions that count."""
        return round(self.positions * self.share)


def measure(side: str, work: Work) -> dict[str, Any]:
    """Run one side: `ours`, `full` logits, or `trl`'s head."""
    import torch

    draw = torch.Generator().manual_seed(0)
    hidden = torch.randn(work.positions, work.width, generator=draw).requires_grad_()
    weight = torch.empty(work.vocabulary, work.width).normal_(0, 0.06, generator=draw).requires_grad_()
    targets = torch.randint(work.vocabulary, (work.positions,), generator=draw)
    scored = torch.zeros(work.positions, dtype=torch.bool)
    scored[-work.scored :] = True
    slopes = (torch.randn(work.scored, generator=draw), torch.full((work.scored,), 0.01))
    head = {"ours": _ours, "full": _full, "trl": _trl}[side]
    found: dict[str, float] = {}

    def lap() -> None:
        hidden.grad = weight.grad = None
        logp, entropy = head(hidden, weight, targets, scored, slopes)
        loss = (logp * slopes[0]).sum() + (entropy * slopes[1]).sum()
        loss.backward()
        assert hidden.grad is not None
        assert weight.grad is not None
        found["loss"] = float(loss.detach())
        found["hidden_gradient"] = float(hidden.grad.norm())
        found["head_gradient"] = float(weight.grad.norm())

    laps, done = timed(work.laps, lap)
    return laps.as_sample(done, scored=work.scored, **found)


def _ours(hidden: Any, weight: Any, targets: Any, scored: Any, slopes: Any) -> Any:
    from benchmarks.ours_inside import head

    return head(hidden, weight, targets, scored, slopes)


def _full(hidden: Any, weight: Any, targets: Any, scored: Any, slopes: Any) -> Any:
    """What one writes first: logits of every position."""
    import torch

    log_probs = torch.log_softmax(hidden @ weight.T, dim=-1)
    logp = log_probs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    entropy = -(log_probs.exp() * log_probs).sum(dim=-1)
    return logp[scored], entropy[scored]


def _trl(hidden: Any, weight: Any, targets: Any, scored: Any, slopes: Any) -> Any:
    """TRL's fused head, as `add_fused_lm_head` calls it for a model whose body gives ``hidden``."""
    from trl.kernels import ChunkedLogProbFunction
    from trl.trainer.utils import _CHUNKED_LOGPROB_CHUNK_SIZE

    logp, entropy, *_ = ChunkedLogProbFunction.apply(
        hidden, weight, None, targets, 1.0, _CHUNKED_LOGPROB_CHUNK_SIZE, None, 1.0, ("log_probs", "entropy")
    )
    return logp[scored], entropy[scored]
