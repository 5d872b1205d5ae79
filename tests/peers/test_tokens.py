"""Complaints about the tokens of prompts and completions between the tokenizer, the sampler and the loss."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from support.chat_tokenizers import CHATML, HEADERS, chat_tokenizer
from support.tiny import sampling_settings, tiny_llama
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from maxent_grpo.tasks.base import TaskRow
from maxent_grpo.tasks.conversation import PromptStyle
from maxent_grpo.tasks.prompt_writer import PromptWriter
from maxent_grpo.tasks.rows import RowPrompt
from maxent_grpo.tasks.tokenize import PromptCache
from maxent_grpo.training.generation.local import LocalGenerator
from maxent_grpo.training.scoring.batch import RowRange, build_score_batch
from maxent_grpo.training.scoring.policy import SampledDistribution, TokenScorer
from maxent_grpo.training.types.rewards import CompletionRecord, ScoreBatch
from maxent_grpo.training.types.runtime import BatchingSettings

TURNS = [{"role": "user", "content": "1+1?"}]


def sampled_and_scored(
    tokenizer: PreTrainedTokenizerBase, text: str, num: int, *, eos: tuple[int, ...] = (2,), **sampling: Any
) -> tuple[list[CompletionRecord], list[str], ScoreBatch, list[list[int]]]:
    """Completions of a prompt with the batch they are trained in, and the rows that were fed to the model, sampler first."""
    model = tiny_llama(vocab_size=len(tokenizer))
    fed: list[list[int]] = []
    model.register_forward_pre_hook(
        lambda _, args, kwargs: fed.extend((args[0] if args else kwargs["input_ids"]).tolist()), with_kwargs=True
    )
    cache = PromptCache(tokenizer, 4)
    generator = LocalGenerator(
        model,
        tokenizer,
        sampling_settings(**sampling),
        cache,
        seed=0,
        stream="train",
        pad_token_id=0,
        eos_token_ids=eos,
    )
    generator.begin_rollout(0)
    texts, records = generator([RowPrompt(text, "row")], num)
    assert records is not None
    kept = [record for record in records[0] if record is not None]
    batching = BatchingSettings(0, 0, cache, share_prompts=False)
    batch = build_score_batch([text], [kept], batching, pad_token_id=0, max_prompt_len=200)
    allowed = None
    if sampling.get("allowed_token_ids"):
        allowed = torch.zeros(len(tokenizer), dtype=torch.bool)
        allowed[[*sampling["allowed_token_ids"], *eos]] = True
    scorer = TokenScorer(
        SampledDistribution(allowed=allowed), batching, None, entropy_carries_gradient=False, padded=False
    )
    pieces = scorer.assemble(batch, RowRange(0, num), torch.float64)
    scores = scorer.score(model, pieces, batch.completion_ids.shape[1])
    for row, record in enumerate(kept):
        assert record.behaviour_logp is not None
        assert scores.logp[row, : len(record.token_ids)].tolist() == pytest.approx(record.behaviour_logp, abs=1e-9)
    return kept, texts[0], batch, fed


@pytest.mark.parametrize(("writes", "adds"), list(itertools.product([True, False], repeat=2)))
@pytest.mark.parametrize("chat", [True, False])
def test_sampler_and_trainer_read_one_start_token(writes: bool, adds: bool, chat: bool) -> None:
    """Complaint 45 (huggingface/trl#3853, #3520): a start token written by the template and added again by the tokenizer, or

    by one side only. Whoever writes it, there is one, and both sides are fed the same ids. A chat whose template and tokenizer
    both do without has none, as its model knows it.
    """
    tokenizer = chat_tokenizer(HEADERS if writes else CHATML, adds_start=adds)
    text = PromptWriter(tokenizer, PromptStyle(chat=chat)).row_text(TaskRow("row", TURNS, "2", {}))
    [record], _, batch, fed = sampled_and_scored(tokenizer, text, 1, max_completion_len=3)
    prompt = batch.prompt_entries[0].input_ids
    starts = 1 if writes or adds or not chat else 0
    assert prompt.count(tokenizer.bos_token_id) == starts
    assert prompt[:starts] == [tokenizer.bos_token_id] * starts
    assert fed[0] == prompt  # the sampler's first pass
    assert fed[-1][: len(prompt)] == prompt  # the trainer's pass over prompt and completion
    trained = [*prompt, *record.token_ids]
    assert fed[-1] in (trained, trained[:-1])
    if chat and (writes or not adds):
        assert prompt == tokenizer.apply_chat_template(TURNS, add_generation_prompt=True, return_dict=False)


def merging_tokenizer() -> PreTrainedTokenizerFast:
    """Reads "hello" as one token, though "he" and "llo" are tokens too."""
    vocabulary = {token: n for n, token in enumerate(["<pad>", "<bos>", "<eos>", *"helo", "he", "ll", "llo", "hello"])}
    merges = [("h", "e"), ("l", "l"), ("ll", "o"), ("he", "llo")]
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.Split(" ", behavior="removed")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>")


def test_sampled_tokens_are_trained_as_they_were_sampled() -> None:
    """Complaint 46 (huggingface/trl#5224): completions decoded and encoded again become other tokens. ["he", "llo"] would

    come back as ["hello"]: what is trained is what was sampled, with its own log-probabilities.
    """
    tokenizer = merging_tokenizer()
    he, llo, hello = tokenizer.convert_tokens_to_ids(["he", "llo", "hello"])
    assert tokenizer("hello")["input_ids"] == [hello]
    records, texts, batch, fed = sampled_and_scored(
        tokenizer, "<bos>hello", 24, eos=(), max_completion_len=4, allowed_token_ids=(he, llo)
    )
    changed = 0
    for row, (record, text) in enumerate(zip(records, texts, strict=True)):
        trained = batch.completion_ids[row][batch.completion_attention_mask[row]].tolist()
        assert trained == record.token_ids
        assert set(trained) <= {he, llo}
        assert any(line[: 2 + len(trained)] == [1, hello, *trained] for line in fed)
        changed += tokenizer(text)["input_ids"] != trained
    assert changed > 0  # decoding and encoding again would have changed some
