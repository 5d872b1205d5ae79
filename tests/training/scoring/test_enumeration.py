"""With the answer alphabet allowed alone, every completion there is can be listed, and its exact probability known."""

import itertools

import torch

from maxent_grpo.config.model import TinyModelConfig
from maxent_grpo.models.build import build_model
from maxent_grpo.objective.logprobs import sequence_sum
from maxent_grpo.objective.weights import maxent_log_weights, utility_log_q
from maxent_grpo.training.scoring.batch import RowRange, build_score_batch
from maxent_grpo.training.scoring.policy import SampledDistribution, TokenScorer
from maxent_grpo.training.types.choices import FinishReason
from maxent_grpo.training.types.rewards import CompletionRecord, PromptCacheEntry
from maxent_grpo.training.types.runtime import BatchingSettings

T_MAX = 5


def test_the_probabilities_of_all_completions_sum_to_one_and_compare_with_the_closed_form() -> None:
    loaded = build_model(TinyModelConfig(hidden_size=32, num_heads=1, num_layers=1, intermediate_size=32))
    letters = [loaded.tokenizer.convert_tokens_to_ids(letter) for letter in "RGB"]
    end = loaded.tokenizer.eos_token_id
    ended = [[*text, end] for size in range(T_MAX) for text in itertools.product(letters, repeat=size)]
    cut = [list(text) for text in itertools.product(letters, repeat=T_MAX)]
    records = [
        CompletionRecord("row", ids, None, FinishReason.eos if ids[-1] == end else FinishReason.length, 0)
        for ids in (*ended, *cut)
    ]
    assert len(records) == 364

    prompt = loaded.tokenizer.encode("RR.b......ijkl..o", add_special_tokens=False)
    settings = BatchingSettings(0, 0, lambda _: PromptCacheEntry(prompt, [1] * len(prompt)))
    batch = build_score_batch(["x"], [records], settings, pad_token_id=0, max_prompt_len=64)
    allowed = torch.zeros(len(loaded.tokenizer), dtype=torch.bool)
    allowed[[*letters, end]] = True
    scorer = TokenScorer(SampledDistribution(allowed=allowed), settings, None, False, padded=False)
    with torch.no_grad():
        scores = scorer.score(loaded.model, scorer.assemble(batch, RowRange(0, 364), torch.float32), T_MAX)
    log_policy = sequence_sum(scores.logp, batch.completion_attention_mask).double().unsqueeze(0)
    assert abs(float(log_policy.exp().sum()) - 1.0) < 1e-5

    # the closed form over the same space: right answers share their mass equally, and hold nearly all of it at tau 0.1
    utilities = torch.zeros(1, 364, dtype=torch.float64)
    utilities[0, [100, 101]] = 1.0
    everything = torch.ones(1, 364, dtype=torch.bool)
    log_q = utility_log_q(utilities, everything, temperature=1.0, epsilon=0.0)
    target = maxent_log_weights(log_q, torch.zeros_like(log_q), everything, tau=0.1, beta=0.0)
    right = float(torch.tensor(10.0).exp())
    assert abs(float(target.exp()[0, 100]) - right / (2 * right + 362)) < 1e-6
    assert float((target.exp() * (target - log_policy)).sum()) > 1.0
