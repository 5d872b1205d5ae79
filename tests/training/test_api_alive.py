"""Nothing of the documented interface is decoration: a running program reads every field and calls every function."""

from __future__ import annotations

import inspect
from dataclasses import MISSING, fields
from typing import Any
from unittest.mock import patch

import pytest
from support.reading import Use, documented, watched
from support.runs import metric_lines, train

from maxent_grpo.errors import GenerationError
from maxent_grpo.training import samplers
from maxent_grpo.training.generation.local import LocalGenerator

API = documented()

FACTORY = "<factory>"

SEEDS = "follows from two settings, scoring.row_weights.entropy_alpha and generation.num_generations, which the run's record has"
PARTS = "the target forms q anew over the completions that take part in it; completions.jsonl records the samples"
UNREAD: dict[str, str] = {
    "BatchDiagnostics.clip_ratio_region_mean": "equal to clip_ratio by definition, which policy/clip_ratio records",
    "LengthStats.min_terminated": "equal to min_length unless every completion was cut, and completion/clipped_ratio is 1",
    "QDistribution.grouped": PARTS,
    "RewardComputation.q_grouped": PARTS,
    "ReferenceLogprobs.ref_token_mask": "equal to the experience's mask, which the step has at hand",
    "RewardComputation.seed_alpha_effective": SEEDS,
    "RewardComputation.seed_max_possible_entropy": SEEDS,
    "ScoreBatch.max_prompt_len": "rendering has dropped or cut longer prompts before a rollout begins",
    "ValidationContext.tokenizer": "the generator holds it, and answers and tags are tokenised before training",
}
"""Documented fields that this program does not read, and why; one that it does read may not stand here."""

EVERYTHING = (
    "scoring.kl_beta=0.1",
    "scoring.weighting.beta=0.1",
    "scoring.policy_entropy_bonus_coef=0.1",
    "scoring.reference_sync.every_n_steps=1",
    "optimization.num_iterations=2",
    "evaluation.every_n_steps=1",
    "evaluation.seed_eval.enabled=true",
    "generation.num_generations=3",
)


class ShortOnce(LocalGenerator):
    """Comes back one completion short for the first prompt of the first call."""

    is_short = True

    def __call__(self, prompts: list[str], num_samples: int, per_prompt_counts: list[int] | None = None) -> Any:
        texts, records = super().__call__(prompts, num_samples, per_prompt_counts)
        if ShortOnce.is_short:
            ShortOnce.is_short = False
            return [texts[0][:-1], *texts[1:]], [records[0][:-1], *records[1:]]
        return texts, records


@pytest.fixture(scope="module")
def use(tmp_path_factory: pytest.TempPathFactory) -> Use:
    """Short runs: one with a retry, its continuation, a listwise method, one that adapts tau, one that discounts prompts, one that asks a server that is not there."""
    folder = tmp_path_factory.mktemp("alive")
    listwise = (
        "scoring=maxent_listwise",
        "scoring.clipping.use_clip_objective=true",
        "scoring.batching.share_prompts=false",
    )
    with watched(API) as seen, patch.object(samplers, "LocalGenerator", ShortOnce):
        train(folder / "first", "scoring=maxent", *EVERYTHING, "evaluation.enabled=false")
        train(
            folder / "first",
            "scoring=maxent",
            *EVERYTHING,
            "optimization.total_training_steps=3",
            resume_from=folder / "first",
        )
        state = f"controller.paths.resume_from={folder / 'first' / 'controller_state.json'}"
        train(folder / "listwise", *listwise, *EVERYTHING, state)
        train(folder / "meta", "scoring=maxent", "controller=meta", "controller.every_n_steps=1")
        train(folder / "entropies", "scoring=seed_grpo", "evaluation.enabled=false")
        with pytest.raises(GenerationError, match="no vLLM server answers there"):
            train(folder / "nobody", "generation=vllm", "generation.vllm.url=http://127.0.0.1:9")
    assert metric_lines(folder / "first")[0]["generation/retry_rounds"] == 1
    assert any("eval/pass@1" in line for line in metric_lines(folder / "first"))
    return seen


@pytest.mark.parametrize("name", API.classes)
def test_every_documented_field_is_read_or_excused(use: Use, name: str) -> None:
    documented_names = {f"{name}.{field}" for field in API.classes[name].names}
    excused = {field for field in UNREAD if field.startswith(f"{name}.")}
    assert excused <= documented_names
    read = {field for field in use.read if field.startswith(f"{name}.")}
    assert documented_names - read == excused, "unread without an excuse, or excused and read"


def test_every_documented_function_is_called(use: Use) -> None:
    assert use.called == set(API.functions)


@pytest.mark.parametrize("name", API.classes)
def test_a_documented_class_takes_its_documented_parameters_in_order(name: str) -> None:
    declared = list(fields(API.classes[name].kind))
    order = [*(field for field in declared if not field.kw_only), *(field for field in declared if field.kw_only)]
    spelled = {
        field.name: field.name
        if field.default is MISSING and field.default_factory is MISSING
        else f"{field.name}={FACTORY if field.default is MISSING else repr(field.default)}"
        for field in order
    }
    documented_names = [parameter.split("=")[0] for parameter in API.classes[name].parameters]
    assert [field.name for field in order if field.name in documented_names] == documented_names
    # what must be given there may have a default here, as nodes of the configuration have
    for spelling in API.classes[name].parameters:
        assert "=" not in spelling or spelled[spelling.split("=")[0]] == spelling
    # further fields come after the documented ones and have defaults, so that documented calls keep their meaning
    extra = [field for field in order if field.name not in documented_names]
    assert all("=" in spelled[field.name] for field in extra)
    positional = [field.name for field in declared if not field.kw_only]
    assert positional[: len(positional) - len(extra)] == [n for n in documented_names if n in positional]


@pytest.mark.parametrize("name", API.functions)
def test_a_documented_function_takes_its_documented_parameters_in_order(name: str) -> None:
    parameters = inspect.signature(API.functions[name]).parameters.values()
    positional = [parameter.name for parameter in parameters if parameter.kind is not parameter.KEYWORD_ONLY]
    assert positional == API.parameters[name]
    assert all(p.default is not p.empty for p in parameters if p.kind is p.KEYWORD_ONLY)
