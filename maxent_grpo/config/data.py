"""`data`: the problems, their train and evaluation split, and what happens to prompts that are too long."""

from dataclasses import dataclass, field
from typing import Any

from maxent_grpo.training.types.choices import AnswerPart, Duplicates, LongPrompts, Overlap


@dataclass(slots=True)
class Example:
    """One answered question that is shown before the row's own."""

    question: str = ""
    """The question, as a row would ask it."""
    answer: str = ""
    """Everything that a good answer says."""


@dataclass(slots=True)
class DataConfig:
    """Fields that every data option has."""

    long_prompts: LongPrompts = LongPrompts.drop
    """Prompts longer than generation.max_prompt_len: `drop` them (counted) or `truncate_left`."""
    shuffle: bool = True
    """Draw a new order of the training rows in every epoch, from data.order_seed; false keeps the dataset's order."""
    order_seed: int | None = None
    """Seed of the order of the training rows; null is the run's seed."""
    system_prompt: str | None = None
    """System turn of every conversation that does not begin with one of its own; null adds none."""
    prompt_template: str | None = None
    """Text of the question: `{prompt}` stands for the row's question, `{name}` for its column of that name, `{{` for a brace; null is the question itself."""
    examples: list[Example] = field(default_factory=list[Example])
    """Answered questions shown before each row's own, as `[{question: ..., answer: ...}]`; their questions pass through data.prompt_template too."""
    examples_file: str | None = None
    """Examples from a file of JSON lines with `question`, `answer` and whatever columns data.prompt_template names; they come before data.examples. null is none."""
    assistant_prefix: str = ""
    """Text that the assistant's turn begins with, such as "<think>\\n": the end of the prompt, no part of the completion."""
    chat: bool = True
    """Write prompts with the model's chat template; false writes plain text behind one start token, where the tokenizer has one."""
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict[str, Any])
    """Variables that the model's chat template reads, as `{enable_thinking: false}`; one that it does not read is refused."""
    dedup: Duplicates = Duplicates.drop
    """Training rows whose prompt, but for case and white space, occurred before: `drop` them or `keep` them (counted)."""
    overlap: Overlap = Overlap.drop
    """Training rows whose prompt, but for case and white space, is also held out: `stop` with an error, `drop` them or `allow` them (counted)."""
    answer_in: AnswerPart = AnswerPart.whole
    """Part of a completion that the task's grader reads: the `whole`, what stands in its `<answer>` `tags`, or in its `\\boxed{}`."""
    render_ahead: int = 20000
    """Most training rows whose prompts are all written before training; of a longer set each is written when it is drawn [rows]."""


@dataclass(slots=True)
class ColoringDataConfig(DataConfig):
    """Complete a proper 3-colouring of a small graph some of whose vertices are hidden; every right answer is known."""

    num_vertices: int = 6
    """Vertices of each graph."""
    num_hidden: int = 4
    """Vertices whose colour must be filled in."""
    edge_probability: float = 0.62
    """Probability of an edge between two vertices of different planted colour."""
    min_modes: int = 2
    """Fewest right answers of a kept problem."""
    max_modes: int = 10
    """Most right answers of a kept problem."""
    num_train: int = 3500
    """Training problems [prompts]."""
    num_eval: int = 96
    """Held-out problems, disjoint from training and demonstrations by problem identity [prompts]."""
    problem_seed: int = 0
    """Seed of the problems; separate from the run's seed so that runs share one dataset."""


@dataclass(slots=True)
class CountdownDataConfig(DataConfig):
    """Use every number once, with + - * /, to reach the target; solutions that differ only in order, brackets or signs are one."""

    num_numbers: int = 3
    """Numbers of each problem, 3 or 4; they may repeat."""
    min_number: int = 1
    """Smallest number."""
    max_number: int = 12
    """Largest number."""
    min_target: int = 1
    """Smallest target."""
    max_target: int = 100
    """Largest target."""
    min_modes: int = 2
    """Fewest really different solutions of a kept problem; demonstrations of a warm start may have fewer."""
    max_modes: int = 10
    """Most really different solutions of a kept problem."""
    num_train: int = 500
    """Training problems [prompts]."""
    num_eval: int = 96
    """Held-out problems, disjoint from training and demonstrations by numbers and target [prompts]."""
    problem_seed: int = 0
    """Seed of the problems; separate from the run's seed so that runs share one dataset."""


@dataclass(slots=True)
class ReasoningGymDataConfig(DataConfig):
    """Problems that the reasoning-gym library generates, of one family or of several, graded by its own graders."""

    tasks: dict[str, float] = field(default_factory=dict[str, float])
    """Families and their shares, as in {chain_sum: 1} or {chain_sum: 3, gsm_symbolic: 1}."""
    task_settings: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """Settings of a family under its name, as in {chain_sum: {max_terms: 2}}; what is left out has the library's default."""
    num_train: int = 2000
    """Training problems, all families together [prompts]."""
    num_eval: int = 128
    """Held-out problems, all different from the training problems [prompts]."""
    problem_seed: int = 0
    """Seed of the problems; separate from the run's seed so that runs share one dataset."""
