"""Log-probabilities and entropies of chosen tokens straight from hidden states, a few rows of logits at a time.

For hidden row h, output matrix W, bias b, and the distribution p of ``HeadDistribution`` with logits z(a) of a = W h + b:

    logp = log p(target)              d logp / dz = onehot(target) - p
    H    = -sum_v p_v log p_v         d H    / dz = -p (log p + H)

No tensor of [tokens x vocabulary] is kept. Rows are taken in chunks whose logits fit ``CHUNK_BYTES``, in buffers that are used
again. Where the slopes dL/dlogp and dL/dH of the loss are known beforehand, the gradients are formed from the same logits, with
three matrix products in all; otherwise the backward pass makes the logits a second time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from maxent_grpo.objective.head_distribution import HeadDistribution

CHUNK_BYTES = 128 * 2**20
"""Most memory of the logits that are made at once; one row is always made whole [bytes]."""
CHUNK_BYTES_OF_DEVICE = 2**30
"""The same on an accelerator, whose matrix products want more rows [bytes]."""
BLOCK_BYTES = 2**19
"""Logits that are normalised at once on a processor, so that they stay in its cache between the passes over them [bytes]."""
GRADIENT_BLOCK = 2**14
"""Rows of a narrow matrix's gradient that are made at once, before they join their sum in 32 bits."""
LEAST_LOG_PROB = -1e4
"""Stands for minus infinity in products with probabilities; exp() of it is 0 in 64 bits as well [nats]."""


class Slopes(NamedTuple):
    """What a loss asks of each token: dL/dlogp, and dL/dH where the entropy has a part in it."""

    logp: Float[Tensor, " tokens"] | None
    entropy: Float[Tensor, " tokens"] | None

    def part(self, rows: slice, factor: float) -> Slopes:
        """Those of some tokens, times ``factor``, as columns."""
        one, other = (None if v is None else (v[rows] * factor).unsqueeze(-1) for v in self)
        return Slopes(one, other)


class HeadScores(NamedTuple):
    """Results in float32 or better."""

    logp: Float[Tensor, " tokens"]
    entropy: Float[Tensor, " tokens"] | None


def head_scores(
    hidden: Float[Tensor, "tokens width"],
    weight: Float[Tensor, "vocab width"],
    bias: Float[Tensor, " vocab"] | None,
    targets: Int[Tensor, " tokens"],
    distribution: HeadDistribution,
    *,
    with_entropy: bool = False,
    slopes: Slopes | None = None,
) -> HeadScores:
    """log p(target) and, with ``with_entropy``, the entropy of each row's distribution [nats].

    Equal to ``log_distribution(sampled_logits(...))`` of the logits up to rounding; narrow types have their logits rounded as the
    model rounds them and are normalised in 32 bits. Differentiable once, in hidden, weight and bias.

    Args:
        hidden: inputs of the output matrix, one row a token; also none.
        weight: the output matrix, of the type of ``hidden``.
        bias: added to the products, or None.
        targets: token whose log-probability is asked for.
        distribution: what is done to the products.
        with_entropy: whether the entropy is computed; gradient flows through it as well.
        slopes: the gradient of the loss in the results, if it is known already. The gradients of ``hidden`` and ``weight`` are
            then formed at once, and used if the backward pass asks for these slopes exactly; it recomputes otherwise.

    Raises:
        RuntimeError: in a backward pass that is itself to be differentiated (``create_graph=True``).
    """
    trained = [part for part in (hidden, weight, bias) if part is not None and part.requires_grad]
    if not torch.is_grad_enabled() or not trained:
        scores, _, _ = _forward(
            hidden, weight, bias, targets, distribution, with_entropy, None, _Wanted(False, False, False)
        )
        return scores
    known = (None, None) if slopes is None else tuple(None if part is None else part.detach() for part in slopes)
    logp, entropy = _FusedHead.apply(hidden, weight, bias, targets, *known, distribution, with_entropy)  # pyright: ignore
    return HeadScores(logp, entropy)


def rows_at_once(tokens: int, row_bytes: int, *, on_cpu: bool) -> tuple[int, int]:
    """Rows of a chunk and of a block, for logits of ``row_bytes`` a row in 32 bits or more."""
    rows = min(tokens, max(1, (CHUNK_BYTES if on_cpu else CHUNK_BYTES_OF_DEVICE) // row_bytes))
    return rows, min(rows, max(1, BLOCK_BYTES // row_bytes)) if on_cpu else rows


class _FusedHead(torch.autograd.Function):
    """``head_scores`` with its gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        logp_slope: Tensor | None,
        entropy_slope: Tensor | None,
        distribution: HeadDistribution,
        with_entropy: bool,
    ) -> tuple[Tensor, Tensor | None]:
        ctx.set_materialize_grads(False)
        ctx.distribution = distribution
        known = Slopes(logp_slope, entropy_slope)
        is_known = logp_slope is not None or entropy_slope is not None
        wanted = _Wanted(*ctx.needs_input_grad[:3]) if is_known else _Wanted(False, False, False)
        scores, log_sum, gradients = _forward(
            hidden, weight, bias, targets, distribution, with_entropy, known if any(wanted) else None, wanted
        )
        # the entropy's value is needed again only for its slope
        ctx.save_for_backward(hidden, weight, bias, targets, log_sum, scores.entropy, *known, *gradients)
        return scores

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor | None) -> Any:
        if torch.is_grad_enabled():
            # a derivative whose own dependence is not recorded would be taken for a constant in silence
            raise RuntimeError(
                "head_scores is differentiable once, and create_graph=True asks for more: score from the model's own logits"
            )
        hidden, weight, bias, targets, log_sum, entropy, *rest = ctx.saved_tensors
        known, formed = Slopes(rest[0], rest[1]), _Gradients(*rest[2:])
        asked, wanted = Slopes(*grad_outputs), _Wanted(*ctx.needs_input_grad[:3])
        if any(part is not None for part in formed) and _same(asked, known):
            gradients = formed
        else:
            gradients = _backward(
                hidden, weight, bias, targets, ctx.distribution, asked, _Normalised(log_sum, entropy), wanted
            )
        return (*gradients, None, None, None, None, None)


class _Normalised(NamedTuple):
    """What the forward pass has found of each row: the logarithm of its sum, and the entropy."""

    log_sum: Tensor
    entropy: Tensor | None


class _Wanted(NamedTuple):
    """Which gradients are asked for."""

    hidden: bool
    weight: bool
    bias: bool


class _Gradients(NamedTuple):
    hidden: Tensor | None
    weight: Tensor | None
    bias: Tensor | None


def _forward(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    distribution: HeadDistribution,
    with_entropy: bool,
    slopes: Slopes | None,
    wanted: _Wanted,
) -> tuple[HeadScores, Tensor, _Gradients]:
    """Scores, the log-sum of each row, and the gradients that are wanted and whose slopes are known."""
    work = _Workspace.of(hidden, weight, distribution)
    num, wide = len(hidden), work.wide
    logp, log_sum = (torch.empty(num, dtype=wide, device=hidden.device) for _ in range(2))
    entropy = torch.empty_like(logp) if with_entropy else None
    sums = _Sums.of(hidden, weight, bias, wide, wanted)
    for chunk in work.chunks(num):
        logits = work.logits(hidden[chunk], weight, bias)
        for rows, block in work.blocks(chunk):
            z = work.restricted(logits[block], targets[rows])
            log_p = torch.log_softmax(z, dim=-1, out=work.log_p[: len(z)])
            at = targets[rows].unsqueeze(-1)
            logp[rows] = log_p.gather(-1, at).squeeze(-1)
            log_sum[rows] = z.gather(-1, at).squeeze(-1) - logp[rows]
            if entropy is None and slopes is None:
                continue
            p = torch.exp(log_p, out=z)
            if distribution.is_cut:
                log_p.clamp_(min=LEAST_LOG_PROB)
            if entropy is not None:
                entropy[rows] = -torch.linalg.vecdot(p, log_p)  # pyright: ignore[reportUnknownMemberType]
            if slopes is not None:
                part = slopes.part(rows, distribution.transform.scale / distribution.divisor)
                found = _Normalised(log_sum[rows], None if entropy is None else entropy[rows])
                _to_slopes(p, log_p, at, part, found, distribution)
                work.put_back(logits[block], p)
        if slopes is not None:
            sums.add(logits, hidden[chunk], weight, chunk)
    return HeadScores(logp, entropy), log_sum, sums.gradients(hidden, weight)


def _backward(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    distribution: HeadDistribution,
    slopes: Slopes,
    found: _Normalised,
    wanted: _Wanted,
) -> _Gradients:
    """The gradients by making the logits again, of the tokens that the loss asks anything of."""
    work = _Workspace.of(hidden, weight, distribution)
    rows_asked = torch.zeros(len(hidden), dtype=torch.bool, device=hidden.device)
    for part in slopes:
        if part is not None:
            rows_asked |= part != 0
    asked = rows_asked.nonzero().squeeze(-1)
    everything = len(asked) == len(hidden)
    if not everything:
        hidden, targets = hidden[asked], targets[asked]
        slopes = Slopes(*(None if part is None else part[asked] for part in slopes))
        found = _Normalised(*(None if part is None else part[asked] for part in found))  # pyright: ignore
    sums = _Sums.of(hidden, weight, bias, work.wide, wanted)
    for chunk in work.chunks(len(hidden)):
        logits = work.logits(hidden[chunk], weight, bias)
        for rows, block in work.blocks(chunk):
            z = work.restricted(logits[block], targets[rows])
            log_p = torch.sub(z, found.log_sum[rows].unsqueeze(-1), out=work.log_p[: len(z)])
            p = torch.exp(log_p, out=z)
            if distribution.is_cut:
                log_p.clamp_(min=LEAST_LOG_PROB)
            part = slopes.part(rows, distribution.transform.scale / distribution.divisor)
            here = _Normalised(found.log_sum[rows], None if found.entropy is None else found.entropy[rows])
            _to_slopes(p, log_p, targets[rows].unsqueeze(-1), part, here, distribution)
            work.put_back(logits[block], p)
        sums.add(logits, hidden[chunk], weight, chunk)
    gradients = sums.gradients(hidden, weight)
    if everything or gradients.hidden is None:
        return gradients
    spread = hidden.new_zeros((len(rows_asked), hidden.shape[1])).index_copy_(0, asked, gradients.hidden)
    return gradients._replace(hidden=spread)


def _to_slopes(
    p: Tensor, log_p: Tensor, at: Tensor, slopes: Slopes, found: _Normalised, distribution: HeadDistribution
) -> None:
    """Turn probabilities [m, V] into the loss's slopes in the products, in their place; ``log_p`` is used up.

    ``slopes`` are columns and hold the factor of the products already: c (onehot - p) - e p (log p + H), bent by the softcap.
    """
    softcap = distribution.transform.softcap
    bend = None
    if softcap is not None:
        # the logit before temperature, over its bound, is the tanh whose slope is wanted
        bend = (log_p + found.log_sum.unsqueeze(-1)).mul_(distribution.divisor / softcap).square_().neg_().add_(1.0)
    if slopes.entropy is None:
        assert slopes.logp is not None
        p.mul_(-slopes.logp)
    else:
        assert found.entropy is not None
        constant = slopes.entropy * found.entropy.unsqueeze(-1)
        if slopes.logp is not None:
            constant = constant + slopes.logp
        p.mul_(log_p.mul_(-slopes.entropy).sub_(constant))
    if slopes.logp is not None:
        p.scatter_add_(-1, at, slopes.logp.to(p.dtype))
    if bend is not None:
        p.mul_(bend)


@dataclass
class _Workspace:
    """The buffers of one pass: the logits of a chunk in the model's type, and two of a block in 32 bits or more."""

    distribution: HeadDistribution
    products: Tensor
    log_p: Tensor
    narrow: Tensor | None
    """A block of a narrow type's logits in 32 bits; None where the chunk itself has as many."""

    @classmethod
    def of(cls, hidden: Tensor, weight: Tensor, distribution: HeadDistribution) -> _Workspace:
        vocab, device, wide = len(weight), hidden.device, torch.promote_types(hidden.dtype, torch.float32)
        rows, block = rows_at_once(len(hidden), vocab * wide.itemsize, on_cpu=device.type == "cpu")
        return cls(
            distribution,
            hidden.new_empty((rows, vocab)),
            torch.empty((block, vocab), dtype=wide, device=device),
            None if wide == hidden.dtype else torch.empty((block, vocab), dtype=wide, device=device),
        )

    @property
    def wide(self) -> torch.dtype:
        return self.log_p.dtype

    def chunks(self, num: int) -> Iterator[slice]:
        """The rows of each chunk."""
        size = max(len(self.products), 1)
        return (slice(at, min(at + size, num)) for at in range(0, num, size))

    def blocks(self, chunk: slice) -> Iterator[tuple[slice, slice]]:
        """The rows of each block of a chunk: their places among all, and in the chunk."""
        size = len(self.log_p)
        for at in range(chunk.start, chunk.stop, size):
            last = min(at + size, chunk.stop)
            yield slice(at, last), slice(at - chunk.start, last - chunk.start)

    def logits(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The model's logits of a chunk, in its type."""
        products = torch.mm(hidden, weight.t(), out=self.products[: len(hidden)])
        if bias is not None:
            products.add_(bias)
        return self.distribution.transform.apply_(products)

    def restricted(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The distribution's logits of a block in 32 bits or more, in a buffer that may be written to."""
        wide = logits if self.narrow is None else self.narrow[: len(logits)].copy_(logits)
        return self.distribution.restricted(wide, targets)

    def put_back(self, logits: Tensor, slopes: Tensor) -> None:
        """Leave a block's slopes where its logits were."""
        if slopes.data_ptr() != logits.data_ptr():
            logits.copy_(slopes)


@dataclass
class _Sums:
    """The gradients as they add up over chunks; of a narrow matrix in 32 bits."""

    hidden: Tensor | None
    weight: Tensor | None
    bias: Tensor | None
    started: bool = False

    @classmethod
    def of(cls, hidden: Tensor, weight: Tensor, bias: Tensor | None, wide: torch.dtype, wanted: _Wanted) -> _Sums:
        make = torch.empty if len(hidden) else torch.zeros
        return cls(
            torch.empty_like(hidden) if wanted.hidden else None,
            make(weight.shape, dtype=wide, device=weight.device) if wanted.weight else None,
            torch.zeros(bias.shape, dtype=wide, device=bias.device) if wanted.bias and bias is not None else None,
        )

    def add(self, slopes: Tensor, hidden: Tensor, weight: Tensor, chunk: slice) -> None:
        """Add a chunk's part from the slopes in its products."""
        if self.hidden is not None:
            torch.mm(slopes, weight, out=self.hidden[chunk])
        if self.bias is not None:
            self.bias += slopes.sum(dim=0, dtype=self.bias.dtype)
        if self.weight is None:
            return
        if self.weight.dtype == slopes.dtype:
            # the first part needs no zeros to be added to
            torch.addmm(self.weight, slopes.t(), hidden, beta=int(self.started), out=self.weight)
        else:
            for at in range(0, len(weight), GRADIENT_BLOCK):
                rows = slice(at, at + GRADIENT_BLOCK)
                part = torch.mm(slopes[:, rows].t(), hidden)
                self.weight[rows] = self.weight[rows].add_(part) if self.started else part.to(self.weight.dtype)
        self.started = True

    def gradients(self, hidden: Tensor, weight: Tensor) -> _Gradients:
        """The sums in the types of what they belong to."""
        return _Gradients(
            self.hidden,
            None if self.weight is None else self.weight.to(weight.dtype),
            None if self.bias is None else self.bias.to(weight.dtype),
        )


def _same(asked: Slopes, known: Slopes) -> bool:
    """Whether the slopes are those that were foreseen, bit for bit."""
    return all(
        one is other if one is None or other is None else torch.equal(one, other)
        for one, other in zip(asked, known, strict=True)
    )
