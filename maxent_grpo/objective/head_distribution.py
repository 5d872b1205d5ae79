"""From the products of an output matrix to the distribution that tokens are scored under."""

from __future__ import annotations

from dataclasses import dataclass, field

from jaxtyping import Bool, Float, Int
from torch import Tensor

from maxent_grpo.objective.sampling import sampled_logits


@dataclass(frozen=True)
class HeadTransform:
    """What a model does to the products of its output matrix: multiplies them, then bends them by a bound.

    z = scale a, or bound tanh(scale a / bound).
    """

    scale: float = 1.0
    softcap: float | None = None
    """The bound; None has none."""

    def apply_(self, products: Float[Tensor, "*rows vocab"]) -> Float[Tensor, "*rows vocab"]:
        """The logits of ``products``, in their place."""
        if self.scale != 1.0:
            products.mul_(self.scale)
        if self.softcap is not None:
            products.div_(self.softcap).tanh_().mul_(self.softcap)
        return products


@dataclass(frozen=True)
class HeadDistribution:
    """From products of the output matrix to the distribution that tokens are scored under; see ``sampled_logits``."""

    transform: HeadTransform = field(default_factory=HeadTransform)
    temperature: float = 1.0
    allowed: Bool[Tensor, " vocab"] | None = None
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float | None = None

    @property
    def is_cut(self) -> bool:
        """Whether tokens are outside its support."""
        cuts = (self.allowed is not None, self.top_k is not None, self.top_p < 1.0, bool(self.min_p))
        return any(cuts) or self.temperature == 0.0

    @property
    def divisor(self) -> float:
        """What divides the logits; the limit of temperature 0 chooses a support and divides by nothing."""
        return self.temperature or 1.0

    def restricted(
        self, logits: Float[Tensor, "tokens vocab"], targets: Int[Tensor, " tokens"]
    ) -> Float[Tensor, "tokens vocab"]:
        """Logits of the distribution, in their place unless the support is cut; the targets stay inside it."""
        if not self.is_cut:
            return logits if self.divisor == 1.0 else logits.div_(self.divisor)
        return sampled_logits(
            logits, temperature=self.temperature, allowed=self.allowed, top_k=self.top_k, top_p=self.top_p,
            min_p=self.min_p, keep=targets,
        )  # fmt: skip
