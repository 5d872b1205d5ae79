"""Numbers that are NaN or infinite: where in a step they come from, and how many steps in a row may be left out for them."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from maxent_grpo.errors import NonFiniteError
from maxent_grpo.training.experience import Experience
from maxent_grpo.training.loss import SliceTargets
from maxent_grpo.training.master_weights import live_parameters
from maxent_grpo.training.scored_rows import ScoredRows
from maxent_grpo.training.scoring.batch import RowRange
from maxent_grpo.training.scoring.policy import TokenScorer
from maxent_grpo.training.slice_loss import SliceLoss
from maxent_grpo.training.types.rewards import LossOutputs, SequenceScores
from maxent_grpo.training.types.runtime import TrainingLoopContext

NAMED = 3
"""How many sequences, prompts or weights are named."""
PROMPT_SHOWN = 80
"""Most characters of a prompt that are shown."""

logger = logging.getLogger(__name__)


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 4th, ..., 11th, ..."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


@dataclass
class NonFiniteGuard:
    """Decides what becomes of steps whose numbers are not finite, and counts those that were left out."""

    skip: bool = False
    most_in_a_row: int = 0
    total: int = 0
    in_a_row: int = 0

    def see(self, problem: str | None) -> None:
        """Take in a step: None for one that was taken, else why it was left out.

        Raises:
            NonFiniteError: more steps in a row were left out than may be.
        """
        if problem is None:
            self.in_a_row = 0
            return
        if self.in_a_row >= self.most_in_a_row:
            raise NonFiniteError(
                f"{problem} It is the {ordinal(self.in_a_row + 1)} step in a row, and run.max_nonfinite={self.most_in_a_row} may be left "
                "out."
            )
        self.total += 1
        self.in_a_row += 1
        logger.warning("left out (run.on_nonfinite=skip): %s", problem)

    def metrics(self) -> dict[str, float]:
        """The count, for a run that leaves steps out."""
        return {"optim/skipped_nonfinite": float(self.total)} if self.skip else {}

    def state_dict(self) -> dict[str, int]:
        """The counts."""
        return {"total": self.total, "in_a_row": self.in_a_row}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Count on."""
        self.total, self.in_a_row = int(state["total"]), int(state["in_a_row"])


def explain_loss(
    experience: Experience,
    share: SliceLoss,
    piece: RowRange,
    scores: SequenceScores,
    targets: SliceTargets,
    loss: LossOutputs,
) -> str:
    """Which terms of a slice's loss are not finite, which numbers behind them, and of which sequences."""
    rows, method = share.scored, share.method
    # a term that the loss has no use for is 0 times the log-probs, which is not finite either
    used = {
        "policy": method.has_policy_term,
        "weighted_kl": share.values.kl_beta > 0,
        "listwise": method.listwise_scale > 0,
        "entropy": method.entropy_coef > 0,
        "clip": method.listwise_clip is not None,
    }
    terms = {name.removesuffix("_loss"): value for name, value in asdict(loss.scalars).items()}
    wrong_terms = [
        name for name, value in terms.items() if used.get(name) and value is not None and not math.isfinite(value)
    ]
    found = [(name, bad) for name, bad in _inputs(scores, targets) if bool(bad.any())]
    said = f"Of its terms not finite: {', '.join(wrong_terms)}. " if wrong_terms else ""
    if not found:
        return f"{said}All numbers of single sequences are finite, so that the sum overflows"
    parts = [
        f"{name} of {_sequences(experience, rows, [piece.first + n for n in bad.nonzero().flatten().tolist()])}"
        for name, bad in found
    ]
    return f"{said}Not finite: {'; '.join(parts)}"


def explain_gradient(
    ctx: TrainingLoopContext, experience: Experience, rows: ScoredRows, share: SliceLoss, scorer: TokenScorer
) -> str:
    """Which prompts' own gradients are not finite, and in which weights: one more pass, group by group, until some are found.

    Processes of a model that is cut over them cannot be asked apart, and say nothing.
    """
    network, trained = ctx.runtime.model, ctx.runtime.trained
    if trained is not network and not isinstance(trained, DistributedDataParallel):
        return ""
    parameters = live_parameters(ctx.optimization.handles.base_optimizer)
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    wrong_weights: dict[str, None] = {}
    wrong_groups: list[int] = []
    for first in range(0, len(rows), rows.group_size):
        piece = RowRange(first, first + rows.group_size)
        chunks = scorer.assemble(rows.tokens, piece, next(network.parameters()).dtype)
        loss = share(scorer.score(network, chunks, rows.width), piece)[2].loss
        parts = torch.autograd.grad(loss, parameters, allow_unused=True)
        bad = [
            names.get(id(parameter), "?")
            for parameter, part in zip(parameters, parts, strict=True)
            if part is not None and not bool(part.isfinite().all())
        ]
        wrong_weights |= dict.fromkeys(bad)
        wrong_groups += [first] if bad else []
        if len(wrong_groups) == NAMED:
            break
    if not wrong_groups:
        return "Every prompt's own gradient is finite, so that their sum overflows"
    weights = ", ".join(list(wrong_weights)[:NAMED])
    more = f" and {len(wrong_weights) - NAMED} more weights" if len(wrong_weights) > NAMED else ""
    prompts = "; ".join(
        f"row {rows.names[first][0]} ({_prompt(experience, rows.names[first][0])})" for first in wrong_groups
    )
    return f"Not finite by themselves are, in {weights}{more}, the gradients of: {prompts}"


def _inputs(scores: SequenceScores, targets: SliceTargets) -> Iterator[tuple[str, Tensor]]:
    """Name and [n] whether not finite, of everything that a sequence brings into the loss."""
    mask = scores.token_mask
    assert mask is not None
    for name, values in (
        ("log-probs of the policy", scores.token_logp),
        ("log-probs of the behaviour policy", scores.old_token_logp),
        ("log-probs of the reference", targets.reference_logp),
        ("the sampler's log-probs", targets.sampled_logp),
        ("token entropies", scores.token_entropy),
    ):
        if values is not None:
            yield name, (mask & ~values.detach().isfinite()).any(dim=-1)
    for name, values in (
        ("advantages", targets.advantages),
        ("target weights", targets.weights),
        ("slopes of the listwise term", targets.listwise_coefficient),
    ):
        yield name, ~values.isfinite()


def _sequences(experience: Experience, rows: ScoredRows, places: list[int]) -> str:
    """The first few sequences in words, and how many more there are."""
    shown = [
        f"row {row_id}, completion {sample + 1} of {rows.group_size} ({_prompt(experience, row_id)})"
        for row_id, sample in (rows.names[place] for place in places[:NAMED])
    ]
    more = [f"{len(places) - NAMED} more"] if len(places) > NAMED else []
    return ", ".join([*shown, *more])


def _prompt(experience: Experience, row_id: str) -> str:
    """A row's prompt as a short literal."""
    prompts = zip(experience.batch.prompts, experience.batch.records, strict=True)
    text = next(str(prompt) for prompt, group in prompts if group[0].row_id == row_id)
    return repr(text if len(text) <= PROMPT_SHOWN else f"{text[:PROMPT_SHOWN]}...")
