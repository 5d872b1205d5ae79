"""The model card: what a stranger should know of a trained model, from the record of its run.

Everything in it comes from the run's settings and files. Folders of this machine and what looks like a key are left out, since
a card is made to be published.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import yaml

from maxent_grpo.config.model import HfModelConfig
from maxent_grpo.config.resolve import chosen_options, reference_source
from maxent_grpo.config.resumed import of_the_training
from maxent_grpo.config.root import RootConfig
from maxent_grpo.config.secrets import redacted
from maxent_grpo.models.published import base_name, hub_id, license_name
from maxent_grpo.report.read import read_versions
from maxent_grpo.report.record import RunRecord, reproduce_command
from maxent_grpo.report.scale import duration
from maxent_grpo.telemetry.method_summary import method_rows
from maxent_grpo.training.share.results import results
from maxent_grpo.training.types.choices import ReferenceSource

SHEETS = "docs/methods.md"
"""Where the project writes its methods' formulas."""
METHOD_ROWS = (
    "loss",
    "credit",
    "shaping",
    "overlong",
    "ratio and clip",
    "listwise weights",
    "sequence score",
    "reduction",
)
"""The axes of the method that a card shows."""
LONGEST = 100
"""Characters of a setting's value that are shown."""
_FOLDER = re.compile(r"(?<![\w/:.<)\]|])(?:~|/[\w.+@%-]+)(?:/[\w.+@%-]+)*/([\w.+@%-]+)")


@dataclass(frozen=True, slots=True)
class Subject:
    """What a card is about."""

    config: RootConfig
    record: RunRecord
    step: int
    """Optimiser step that the weights come from."""
    dtype: str
    num_parameters: int
    """Of the model without an adapter beside it."""
    num_trained: int
    """Of the adapter, or of all weights."""

    @property
    def base(self) -> str:
        """The base's name in a sentence: its hub id, or the last part of its folder."""
        name = base_name(self.config.model)
        if name is None:
            return f"the `{self.options['model']}` model of maxent_grpo"
        return f"`{hub_id(self.config.model) or Path(name).name}`"

    @property
    def options(self) -> dict[str, str]:
        """The chosen option of each configuration group."""
        return chosen_options(self.config)

    @property
    def task(self) -> str:
        """What it was trained on, in a word or two."""
        option, data = self.options["data"], self.config.data
        inside: object = getattr(data, "tasks", None) or getattr(data, "name", None)
        if isinstance(inside, dict):
            return f"{option}: {', '.join(map(str, inside))}"
        return f"{option}: {Path(inside).name}" if isinstance(inside, str) else option

    @property
    def title(self) -> str:
        """Base, task and method."""
        name = hub_id(self.config.model) or base_name(self.config.model) or self.options["model"]
        return f"{Path(name).name} · {self.task} · {self.options['scoring']}"


def model_card(subject: Subject, *, is_adapter: bool) -> str:
    """The text of README.md: Hugging Face's header, then sections."""
    parts = [
        _header(subject, is_adapter=is_adapter),
        f"# {subject.title}{' · LoRA adapter' if is_adapter else ''}\n\n{_about(subject, is_adapter=is_adapter)}",
        results(subject.record, subject.config, subject.step),
        _use(subject, is_adapter=is_adapter),
        _training(subject),
        _again(subject),
        _limits(subject),
    ]
    return publishable("\n\n".join(part.strip() for part in parts if part) + "\n")


def publishable(text: str) -> str:
    """The text without folders of this machine, of which the last name stays, and without secrets."""
    return _FOLDER.sub(r"\1", redacted(text))


def _header(subject: Subject, *, is_adapter: bool) -> str:
    base, license_id = hub_id(subject.config.model), license_name(subject.config.model)
    options = subject.options
    fields: dict[str, object] = {}
    if base is not None:
        fields |= {"base_model": base, "base_model_relation": "adapter" if is_adapter else "finetune"}
    fields |= {"library_name": "peft" if is_adapter else "transformers", "pipeline_tag": "text-generation"}
    if license_id is not None:
        fields["license"] = license_id
    tags = ["maxent_grpo", "reinforcement-learning", "grpo", options["scoring"], options["data"]]
    if subject.config.model.lora.enabled:
        tags.append("lora")
    fields["tags"] = list(dict.fromkeys(tags))
    return f"---\n{yaml.safe_dump(fields, sort_keys=False, allow_unicode=True)}---"


def _about(subject: Subject, *, is_adapter: bool) -> str:
    config, group = subject.config, subject.config.generation.num_generations
    origin = "trained from random weights" if base_name(config.model) is None else "fine-tuned"
    if config.model.warm_start.enabled:
        origin = "first taught by demonstrations, then trained"
    about = (
        f"This is {subject.base}, {origin} with reinforcement learning from checkable answers on {subject.task}: for each prompt "
        f"{group} completions were sampled and graded, and the policy moved towards the better ones of each group. Made with "
        f"maxent_grpo."
    )
    size = f"{subject.num_parameters:,} parameters, {subject.dtype}"
    lora = f"a low-rank adapter of {subject.num_trained:,} parameters"
    if is_adapter:
        holds = f"This folder holds {lora}; it belongs to the base it was trained on ({size}) and to no other."
    elif config.model.lora.enabled:
        holds = f"This folder holds the whole model ({size}): {lora} was trained and is merged into the weights."
    else:
        holds = f"This folder holds the whole model ({size}), every weight of which was trained."
    return f"{about}\n\n{holds} The weights are those after optimiser step {subject.step}."


def _use(subject: Subject, *, is_adapter: bool) -> str:
    generation, this = subject.config.generation, '"PATH/OF/THIS/FOLDER"'
    load = ["from transformers import AutoModelForCausalLM, AutoTokenizer", ""]
    if is_adapter:
        base = hub_id(subject.config.model) or "PATH/OF/THE/BASE"
        load = ["from peft import PeftModel", *load]
        load.append(f'base = AutoModelForCausalLM.from_pretrained("{base}", dtype="auto")')
        load.append(f"model = PeftModel.from_pretrained(base, {this})")
    else:
        load.append(f'model = AutoModelForCausalLM.from_pretrained({this}, dtype="auto")')
    load += [f"tokenizer = AutoTokenizer.from_pretrained({this})", ""]
    variables = "".join(f", {name}={value!r}" for name, value in subject.config.data.chat_template_kwargs.items())
    if subject.config.data.chat:
        asks = [
            'messages = [{"role": "user", "content": "..."}]  # a problem, worded as in training',
            "inputs = tokenizer.apply_chat_template(",
            f'    messages, add_generation_prompt=True, return_tensors="pt", return_dict=True{variables}',
            ")",
        ]
    else:
        asks = ['inputs = tokenizer("...", return_tensors="pt")  # a problem, worded as in training']
    sampling = f"do_sample=True, temperature={generation.temperature:g}, top_k=0, top_p={generation.top_p:g}"
    asks += [
        f"output = model.generate(**inputs, max_new_tokens={generation.max_completion_len}, {sampling})",
        'print(tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))',
    ]
    note = (
        f"Training sampled at temperature {generation.temperature:g} and top_p {generation.top_p:g}, at most "
        f"{generation.max_completion_len} tokens a completion. `generation_config.json` says only which tokens begin, end and "
        f"fill a sequence: without `do_sample=True`, `generate` is greedy."
    )
    data = subject.config.data
    asked = [
        *([f"a system turn, {json.dumps(data.system_prompt)}"] if data.system_prompt else []),
        *([f"the question as {json.dumps(data.prompt_template)}"] if data.prompt_template else []),
        *(["answered examples before it"] if data.examples or data.examples_file else []),
        *([f"the assistant's turn begun with {json.dumps(data.assistant_prefix)}"] if data.assistant_prefix else []),
    ]
    if asked:
        note += f" Training's prompts had {', '.join(asked)}: without that the model is asked something else than it was trained on."
    return "\n".join(["## Use", "", "```python", *load, *asks, "```", "", note])


def _training(subject: Subject) -> str:
    config, options = subject.config, subject.options
    method = [(label, text) for label, text in method_rows(config) if label in METHOD_ROWS]
    lines = [
        "## Training",
        "",
        f"Method `{options['scoring']}`; the formulas, their sources and the tests that hold them are in `{SHEETS}` of maxent_grpo, "
        f"section `{options['scoring']}`. With the numbers of this run:",
        "",
        *(f"- **{label}:** `{text}`" for label, text in method),
        "",
        "| setting | value |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in _settings(config)),
    ]
    return "\n".join(lines)


def _settings(config: RootConfig) -> Iterator[tuple[str, str]]:
    """The settings that one asks for first."""
    schedule, scoring, lora, model = config.optimization, config.scoring, config.model.lora, config.model
    base = base_name(model)
    if base is not None:
        revision = f" at revision {model.revision}" if isinstance(model, HfModelConfig) and model.revision else ""
        yield "base", f"{hub_id(model) or Path(base).name}{revision}"
    yield "data", f"`data={chosen_options(config)['data']}`{_changed_data(config)}"
    yield "reward terms", ", ".join(f"{name} × {weight:g}" for name, weight in config.reward.terms.items())
    yield "prompts per step × completions", f"{schedule.prompts_per_step} × {config.generation.num_generations}"
    yield (
        "learning rate",
        f"{schedule.learning_rate:g}, {schedule.lr_scheduler_type}, {schedule.warmup_steps} steps of warm-up",
    )
    yield (
        "prompt, completion at most",
        f"{config.generation.max_prompt_len}, {config.generation.max_completion_len} tokens",
    )
    if reference_source(config) is ReferenceSource.model:
        yield "KL to the reference", f"{scoring.kl_beta:g}"
    if lora.enabled:
        rank = "of the starting adapter" if lora.rank is None and lora.adapter else str(lora.rank or 16)
        targets = "all-linear" if lora.target_modules is None else ", ".join(lora.target_modules)
        yield "LoRA rank; layers", f"{rank}; {targets}"
        if lora.adapter is not None:
            yield "starting adapter", lora.adapter
    yield "seed", str(config.seed)


def _changed_data(config: RootConfig) -> str:
    """The settings of the data that are not their option's defaults."""
    data, plain = config.data, type(config.data)()
    changed = [
        f"`{field.name}={text if len(text := str(getattr(data, field.name))) <= LONGEST else text[:LONGEST] + '…'}`"
        for field in fields(data)
        if getattr(data, field.name) != getattr(plain, field.name)
    ]
    return f", {', '.join(changed)}".replace("\n", " ").replace("|", "\\|") if changed else ""


def _again(subject: Subject) -> str:
    lines = ["## Reproduce", ""]
    if subject.record.overrides is not None:
        lines += [
            "```",
            reproduce_command(of_the_training(subject.record.overrides), subject.record.modules),
            "```",
            "",
        ]
    seconds = subject.record.seconds
    if seconds:
        lines += [f"Its {subject.record.last_step} optimiser steps took {duration(seconds)}.", ""]
    versions = read_versions(subject.record.run_dir) or {}
    if versions:
        lines.append("With " + ", ".join(f"{name} {version}" for name, version in versions.items()) + ".")
    return "\n".join(lines)


def _limits(subject: Subject) -> str:
    license_id = license_name(subject.config.model)
    lines = [
        "## Limits",
        "",
        "Trained for one reward and measured only as above. Outside that task it may have got better or worse than its base, whose "
        "own limits it keeps; it was not examined for safety.",
    ]
    if license_id is not None:
        lines += [
            "",
            f"The base is licensed under {license_id}; its text is in `LICENSE`, and this model is under the same terms.",
        ]
    elif base_name(subject.config.model) is not None:
        lines += ["", "The license of the base holds for this model too: see the base's own card."]
    return "\n".join(lines)
