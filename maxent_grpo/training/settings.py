"""From configuration nodes to the settings objects that training reads. Names such as `auto` are settled here, once."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from transformers import PreTrainedTokenizerBase

from maxent_grpo.config.evaluation import EvaluationConfig
from maxent_grpo.config.generation import (
    ANSWER_ALPHABET,
    GenerationConfig,
    LocalGenerationConfig,
    VllmGenerationConfig,
    VllmMode,
)
from maxent_grpo.config.resolve import resolve_score_mode
from maxent_grpo.config.scoring import ScoringConfig
from maxent_grpo.errors import ConfigError
from maxent_grpo.training.types.choices import BehaviorSource, EntropyMode, ReferenceSource
from maxent_grpo.training.types.generation import GenerationPenaltyConfig, VLLMClientConfig
from maxent_grpo.training.types.runtime import (
    BatchingSettings,
    EvaluationSettings,
    GenerationSettings,
    ScoringSettings,
)


def generation_settings(
    config: GenerationConfig, tokenizer: PreTrainedTokenizerBase | None, answer_alphabet: str | None
) -> GenerationSettings:
    """Sampling settings; the allowed tokens become ids, for which a tokenizer is needed only where there are some.

    A control that is set in ``penalty`` wins over the same one in ``vllm``, and so does ``vllm.rounds_cfg`` over
    ``max_retry_rounds``.
    """
    client = config.vllm if isinstance(config, VllmGenerationConfig) else VLLMClientConfig()
    return GenerationSettings(
        max_prompt_len=config.max_prompt_len,
        max_completion_len=config.max_completion_len,
        gen_temperature=config.temperature,
        gen_top_p=config.top_p,
        use_vllm=isinstance(config, VllmGenerationConfig),
        vllm=client,
        vllm_mode=config.vllm_mode.value if isinstance(config, VllmGenerationConfig) else VllmMode.server.value,
        penalty=_with_client(config.penalty, client),
        num_generations=config.num_generations,
        max_retry_rounds=client.rounds_cfg or config.max_retry_rounds,
        allowed_token_ids=allowed_token_ids(config.allowed_tokens, tokenizer, answer_alphabet),
        batch_size=config.batch_size if isinstance(config, LocalGenerationConfig) else 0,
    )


def _with_client(penalty: GenerationPenaltyConfig, client: VLLMClientConfig) -> GenerationPenaltyConfig:
    """The controls with those of the client where there are none, so that sampling and scoring read one value."""
    return replace(
        penalty,
        gen_top_k=client.top_k if penalty.gen_top_k is None else penalty.gen_top_k,
        gen_best_of=client.best_of if penalty.gen_best_of is None else penalty.gen_best_of,
        gen_frequency_penalty=client.frequency_penalty
        if penalty.gen_frequency_penalty is None
        else penalty.gen_frequency_penalty,
        gen_presence_penalty=client.presence_penalty
        if penalty.gen_presence_penalty is None
        else penalty.gen_presence_penalty,
        gen_stop_sequences=client.stop_sequences if penalty.gen_stop_sequences is None else penalty.gen_stop_sequences,
    )


def allowed_token_ids(
    allowed: list[str], tokenizer: PreTrainedTokenizerBase | None, answer_alphabet: str | None
) -> tuple[int, ...] | None:
    """Ids of the tokens that completions may be made of, end tokens aside; None when all may.

    Raises:
        ConfigError: an entry is not exactly one token of the tokenizer.
    """
    if not allowed or (allowed == [ANSWER_ALPHABET] and answer_alphabet is None):
        return None
    assert tokenizer is not None, "the caller has one where tokens are to be looked up"
    texts = [text for entry in allowed for text in ((answer_alphabet or "") if entry == ANSWER_ALPHABET else [entry])]
    ids = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    wrong = [text for text, tokens in zip(texts, ids, strict=True) if len(tokens) != 1]
    if wrong:
        raise ConfigError(
            f"generation.allowed_tokens: {wrong} are not single tokens of this model's tokenizer, so sampling cannot be "
            "restricted to them: list single tokens, or generation.allowed_tokens=[] to allow all"
        )
    return tuple(sorted({tokens[0] for tokens in ids}))


def scoring_settings(config: ScoringConfig, *, max_completion_len: int, reference: ReferenceSource) -> ScoringSettings:
    """Scoring settings with every `auto` settled; the prompt look-up is the caller's to add.

    Args:
        config: the method.
        max_completion_len: limit that settles the score mode [tokens].
        reference: the settled source of reference log-probs, which the controller has a say in.
    """
    batching, weighting = config.batching, config.weighting
    source = config.behavior_logprobs_source
    return ScoringSettings(
        weighting=replace(weighting, score_mode=resolve_score_mode(weighting.score_mode, max_completion_len)),
        clipping=config.clipping,
        batching=BatchingSettings(
            logprob_chunk_size=batching.logprob_chunk_size,
            score_slice=batching.score_slice,
            score_tail_tokens=batching.score_tail_tokens,
            slice_prefetch=batching.slice_prefetch,
            prompt_cache_size=batching.prompt_cache_size,
            share_prompts=batching.share_prompts,
            max_tokens=batching.max_tokens,
            skip_zero_signal=batching.skip_zero_signal,
        ),
        reference_logprobs_source=reference,
        behavior_logprobs_source=BehaviorSource.sampler if source is BehaviorSource.vllm else source,
        allow_stale_reference_logprobs=config.allow_stale_reference_logprobs,
        trl_reference_scoring=config.trl_reference_scoring,
        policy_entropy_bonus_coef=config.policy_entropy_bonus_coef,
        policy_entropy=config.policy_entropy or config.policy_entropy_bonus_coef > 0,
        policy_entropy_mode=config.policy_entropy_mode,
        advantage=config.advantage,
        ratio_level=config.ratio_level,
        reduction=config.reduction,
        kl_beta=config.kl_beta,
        kl_estimator=config.kl_estimator,
        entropy_coef=config.entropy_coef,
        truncation=config.truncation,
        mismatch=config.mismatch,
        reference_sync=config.reference_sync,
        pass_k=config.pass_k,
        shaping=config.shaping,
        row_weights=config.row_weights,
        surrogate=config.surrogate,
        token_selection=config.token_selection,
        group_loss=config.group_loss,
        dynamic_sampling=config.dynamic_sampling,
        advantage_function=config.advantage_function,
        equal_groups=config.equal_groups,
    )


def entropy_mode(scoring: ScoringSettings) -> str | None:
    """How scoring measures token entropy: "exact", "sample", or None."""
    if not scoring.policy_entropy:
        return None
    return "sample" if scoring.policy_entropy_mode == EntropyMode.sample else "exact"


def evaluation_settings(config: EvaluationConfig, rows: list[dict[str, Any]]) -> EvaluationSettings:
    """Evaluation settings with the rendered held-out rows."""
    return EvaluationSettings(
        enabled=config.enabled and bool(rows),
        rows=rows,
        batch_size=config.batch_size,
        every_n_steps=config.every_n_steps,
        num_samples=config.num_samples,
        ks=tuple(config.ks),
        seed_eval=asdict(config.seed_eval) if config.seed_eval.enabled else None,
    )


def evaluation_sampling(config: EvaluationConfig, training: GenerationSettings) -> GenerationSettings:
    """How evaluation samples: as training does but for what ``config`` says, with counters of its own."""
    return replace(
        training,
        num_generations=config.num_samples,
        gen_temperature=training.gen_temperature if config.temperature is None else config.temperature,
        gen_top_p=training.gen_top_p if config.top_p is None else config.top_p,
        generation_stats=dict.fromkeys(training.generation_stats, 0),
    )
