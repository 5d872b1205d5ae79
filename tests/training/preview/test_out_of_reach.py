"""Presets of language models looked at where there is no hub and no GPU, and their data as records of the real form."""

import json
import re
from itertools import product
from pathlib import Path
from typing import cast

import pytest
from support.checkpoints import save_checkpoint

from maxent_grpo.config.data_sources import HubDataConfig
from maxent_grpo.config.load import load_config
from maxent_grpo.config.presets import config_directory
from maxent_grpo.errors import ConfigError
from maxent_grpo.models.known_shapes import KNOWN_MODELS
from maxent_grpo.rewards.countdown import parse_spec
from maxent_grpo.tasks.base import Task
from maxent_grpo.tasks.build import build_task
from maxent_grpo.tasks.conversation import conversation_of, prompt_style
from maxent_grpo.training.preview.run import preview, workload
from maxent_grpo.training.preview.sight import look
from maxent_grpo.training.preview.sizes import memory_estimate, model_shape

PUBLISHED = {"qwen05b": 494_032_768, "qwen15b": 1_543_714_304, "qwen7b": 7_615_616_512, "llama8b": 8_030_261_248}
"""Parameters by the models' own pages, which round them to 0.49B, 1.54B, 7.61B and 8.03B."""
OTHERS = (3_085_938_688, 14_770_033_664, 32_763_876_352)
"""Of models without a preset."""
DATA = ("gsm8k", "math", "dapo17k", "countdown")
STEPS = {"gsm8k": (128, 8, 200), "math": (128, 8, 200), "dapo17k": (32, 16, 480), "countdown": (64, 16, 200)}
"""Prompts of a step, completions of each, steps."""
FIRST = list(zip(PUBLISHED, DATA, strict=True))
REST = [each for each in product(PUBLISHED, DATA) if each not in FIRST]
GIB = 2**30
PAGE = (config_directory().parent / "docs" / "presets.md").read_text()

pytestmark = pytest.mark.usefixtures("no_hub_and_no_gpu")


def overrides(preset: str, *more: str) -> list[str]:
    few = ("data.num_train=64", "data.num_eval=8") if preset.endswith("countdown") else ()
    return [f"experiment={preset}", "run.dir=nowhere", "run.dry=true", *few, *more]


def value(text: str, label: str) -> str:
    found = re.search(rf"^  {label} {{2,}}(.*)$", text, flags=re.MULTILINE)
    assert found is not None, f"{label} is not in\n{text}"
    return found[1]


@pytest.mark.parametrize(("model", "data"), [*FIRST, *(pytest.param(*each, marks=pytest.mark.slow) for each in REST)])
def test_every_preset_is_described_without_hub_and_gpu(model: str, data: str) -> None:
    text = preview(load_config(overrides(f"{model}_{data}")))
    prompts, group, steps = STEPS[data]
    assert value(text, "prompts per step").strip() == str(prompts)
    assert value(text, "sequences per step").strip() == str(prompts * group)
    assert value(text, "steps in all").strip() == str(steps)
    limit = {"gsm8k": 1024, "countdown": 1024}.get(data, 3072)
    assert value(text, "a rollout").endswith(
        f"at most {prompts * group * limit * (16 if data == 'dapo17k' else 1):,} of completions"
    )
    count, *adapter = (int(each.replace(",", "")) for each in re.findall(r"\d[\d,]+\d", value(text, "parameters")))
    trained = adapter[0] if adapter else 0
    weights = float(value(text, "weights").split(" GiB")[0])
    assert count - trained == PUBLISHED[model]
    assert weights == pytest.approx(PUBLISHED[model] * (2 if trained else 4) / GIB, abs=0.01)
    assert f"`{model}_{data}` {float(value(text, 'peak').split()[0]):.1f} GiB |" in PAGE
    assert value(text, "available here").strip() == "no GPU"
    assert "its sizes are taken from a table of known models" in value(text, "model")
    assert value(text, "prompts").startswith("not written; each counts as generation.max_prompt_len=")
    if data == "countdown":
        assert text.count("not read") == 1  # the model; the problems are made here
    else:
        assert [value(text, f"{kind} prompts") for kind in ("training", "held-out")] == ["not read", "not read"]
        assert value(text, "steps per epoch").strip() == "not read"
        assert "the hub cannot be reached" in value(text, "data")


def test_memory_grows_with_the_model_and_is_known_for_one() -> None:
    """All weights of each trained in 32 bits: four times 4 bytes each, and a fifth time for the optimiser's temporaries."""
    peaks: dict[str, int] = {}
    for model, parameters in PUBLISHED.items():
        config = load_config(overrides(f"{model}_gsm8k", "model.dtype=float32", "model.lora.enabled=false"))
        sight = look(config)
        estimate = memory_estimate(config, workload(config, sight), model_shape(sight.model), process=0, on_gpu=True)
        assert [part.size for part in estimate.persistent] == [4 * parameters, 8 * parameters]
        assert estimate.phases[-2].size == 8 * parameters  # the optimiser's step
        peaks[model] = estimate.peak
    assert sorted(peaks.values()) == list(peaks.values())
    assert peaks["llama8b"] >= 20 * PUBLISHED["llama8b"]


def test_every_known_model_has_the_published_size() -> None:
    assert {"Qwen/Qwen2.5-Math-7B", "meta-llama/Llama-3.1-8B-Instruct"} <= set(KNOWN_MODELS)
    for sizes in KNOWN_MODELS.values():
        hidden, inner, layers, vocab = (
            sizes[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size")
        )
        keys = hidden // sizes["num_attention_heads"] * sizes["num_key_value_heads"]
        bias = hidden + 2 * keys if sizes["model_type"] == "qwen2" else 0
        layer = 2 * hidden * hidden + 2 * hidden * keys + bias + 3 * hidden * inner + 2 * hidden
        count = layers * layer + hidden + vocab * hidden * (1 if sizes["tie_word_embeddings"] else 2)
        assert count in (*PUBLISHED.values(), *OTHERS)


def test_an_unknown_model_out_of_reach_is_one_sentence() -> None:
    with pytest.raises(ConfigError) as caught:
        preview(load_config(overrides("qwen05b_countdown", "model.name=nobody/nothing")))
    assert len(caught.value.problems) == 1
    assert "model.name=nobody/nothing: is no folder here, and the hub cannot be reached" in caught.value.problems[0]


def test_without_rows_the_length_of_training_has_to_be_given() -> None:
    with pytest.raises(
        ConfigError, match=r"optimization\.total_training_steps=0 leaves the length to the number of rows"
    ):
        preview(load_config(overrides("qwen05b_gsm8k", "optimization.total_training_steps=0")))


def test_a_known_model_too_short_for_the_lengths_is_refused() -> None:
    with pytest.raises(ConfigError, match="4096 positions"):
        preview(load_config(overrides("qwen7b_countdown", "generation.max_completion_len=4000")))


def test_a_local_folder_is_looked_at_itself(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path / "model", "qwen2")
    lengths = ("generation.max_prompt_len=400", "generation.max_completion_len=64")
    text = preview(load_config(overrides("qwen05b_countdown", f"model.name={folder}", *lengths)))
    assert "not looked at here" not in text
    assert re.fullmatch(r"\d+ to \d+ tokens, mean [\d.]+", re.findall(r"training prompts +(\d+ to .*)", text)[0])
    assert value(text, "training prompts") == "64"


def as_folder(folder: Path, split: str, *rows: object) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def task_of(preset: str, *more: str) -> tuple[Task, list[str]]:
    """The task, and the question of each training row as the model reads it."""
    config = load_config(overrides(preset, *more))
    task = build_task(config.data)
    return task, [conversation_of(row, prompt_style(config.data))[-1]["content"] for row in task.train_rows]


def test_gsm8ks_records_are_read(tmp_path: Path) -> None:
    record = {"question": "Half of 4,000?", "answer": "Half is <<4000/2=2000>>2000.\n#### 2,000"}
    folder = as_folder(tmp_path / "gsm", "train", record)
    as_folder(folder, "test", record, record)
    task, questions = task_of("qwen05b_gsm8k", f"data.path={folder}", "data.name=null")
    assert questions == ["Half of 4,000?\nPlease reason step by step, and put your final answer within \\boxed{}."]
    assert len(task.eval_rows) == 2
    answer = task.train_rows[0].answer
    said = ("So \\boxed{2000}", "\\boxed{\\$2{,}000}", "it is 2000", "\\boxed{2001}", "\\boxed{2000} or \\boxed{5}")
    assert [task.grade(text, answer).reward for text in said] == [1.0, 1.0, 0.0, 0.0, 0.0]


def test_maths_records_are_read_and_evaluated_on_another_data_set(tmp_path: Path) -> None:
    solution = "Then $x=\\frac{1}{2}$, so $\\boxed{\\frac{1}{2}}$."
    record = {"problem": "Solve $2x=1$.", "level": "Level 1", "type": "Algebra", "solution": solution}
    other = {"problem": "What is $1+1$?", "solution": "\\boxed{2}", "answer": "2", "subject": "Prealgebra", "level": 1}
    train, test = as_folder(tmp_path / "math", "train", record), as_folder(tmp_path / "math500", "test", other)
    task, questions = task_of("qwen7b_math", f"data.path={train}", f"data.eval_path={test}")
    assert questions[0].startswith("Solve $2x=1$.\nPlease reason")
    assert [row.answer for row in (*task.train_rows, *task.eval_rows)] == ["\\frac{1}{2}", "2"]
    said = ("\\boxed{0.5}", "\\boxed{\\dfrac12}", "\\boxed{2}", "1/2")
    assert [task.grade(text, "\\frac{1}{2}").reward for text in said] == [1.0, 1.0, 0.0, 0.0]


def test_dapos_records_are_read(tmp_path: Path) -> None:
    asked = 'Solve it. The last line of your response should be of the form Answer: $Answer.\n\n3 x 8?\n\nRemember the "Answer:".'
    record = {
        "data_source": "math_dapo",
        "prompt": [{"content": asked, "role": "user"}],
        "ability": "MATH",
        "reward_model": {"ground_truth": "24", "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": "9a9b6eb4"},
    }
    train, test = as_folder(tmp_path / "dapo", "train", record), as_folder(tmp_path / "aime", "train", record, record)
    task, questions = task_of("llama8b_dapo17k", f"data.path={train}", f"data.eval_path={test}")
    assert questions == [asked]
    assert (task.train_rows[0].answer, len(task.eval_rows)) == ("24", 2)
    said = ("3 times 8.\nAnswer: 24", "Answer: $24$", "Answer: 25", "Answer: 24\nAnswer: 25")
    assert [task.grade(text, "24").reward for text in said] == [1.0, 1.0, 0.0, 0.0]


def test_countdown_asks_in_words_and_grades_by_mode() -> None:
    task, questions = task_of("qwen05b_countdown")
    row = task.train_rows[0]
    spec = parse_spec(row.answer)
    assert f"Use each of the numbers {list(spec.numbers)} exactly once" in questions[0]
    assert f"to make {spec.target}." in questions[0]
    modes = row.columns["modes"]
    assert len(modes) >= 2
    grades = [task.grade(f"I try.\n<answer>{mode}</answer>", row.answer) for mode in modes]
    assert [grade.reward for grade in grades] == [1.0] * len(modes)
    assert len({grade.mode for grade in grades}) == len(modes)
    assert task.grade(modes[0], row.answer).reward == 0.0  # outside of the tags


def test_the_presets_name_their_data() -> None:
    named = {data: cast(HubDataConfig, load_config(overrides(f"qwen05b_{data}")).data) for data in DATA[:3]}
    assert {data: (each.path, each.eval_path) for data, each in named.items()} == {
        "gsm8k": ("openai/gsm8k", None),
        "math": ("DigitalLearningGmbH/MATH-lighteval", "HuggingFaceH4/MATH-500"),
        "dapo17k": ("BytedTsinghua-SIA/DAPO-Math-17k", "BytedTsinghua-SIA/AIME-2024"),
    }
