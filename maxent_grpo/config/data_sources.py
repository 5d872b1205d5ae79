"""`data=table` and `data=hub`: problems that stand in files or in a data set, and which columns hold what."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from maxent_grpo.config.data import DataConfig
from maxent_grpo.training.types.choices import GraderName, OnBadRow


@dataclass(slots=True)
class TableSource:
    """One table of a mixture; a setting that is null is that of the same name in `data`."""

    path: str | None = None
    """File, folder or pattern; null: the source's name is the path."""
    prompt_column: str | None = None
    """Column of the question."""
    answer_column: str | None = None
    """Column of the right answer."""
    answer_after: str | None = None
    """Text after whose last occurrence the answer stands."""
    answer_boxed: bool | None = None
    """Whether the answer is what the last box holds."""


@dataclass(slots=True)
class HubSource(TableSource):
    """One data set of a mixture; a setting that is null is that of the same name in `data`."""

    name: str | None = None
    """Configuration of the data set."""
    split: str | None = None
    """Split to train on."""
    eval_split: str | None = None
    """Split to evaluate on."""
    revision: str | None = None
    """Branch, tag or commit."""


@dataclass(slots=True)
class SourceDataConfig(DataConfig):
    """Fields of the options whose problems are records with named columns."""

    path: str | None = None
    """Where the records are: a table's file, folder (its files are one table) or pattern such as `data/part-*.jsonl`; a data set's hub id or local folder; null with data.mixture."""
    mixture: dict[str, float] = field(default_factory=dict[str, float])
    """Several sources with the weight of each: `{a.jsonl: 3, b.jsonl: 1}` takes three rows of `a.jsonl` for each of `b.jsonl`. A key is a path (or hub id), or a name explained in data.sources."""
    prompt_column: str | None = "prompt"
    """Column that holds the question: text, or a conversation, a list of {role, content}. Dots lead into nested columns. null: data.prompt_template makes it of other columns."""
    answer_column: str = "answer"
    """Column that holds the right answer: text or a number. Dots lead into nested columns, as in `reward_model.ground_truth`."""
    answer_after: str | None = None
    """The answer is what follows the last occurrence of this text in its column, `####` for GSM8K; null: the whole column."""
    answer_boxed: bool = False
    """The answer is what the last `\\boxed{...}` in its column holds, as in MATH's solutions."""
    columns: list[str] | None = None
    """Further columns that reward functions and data.prompt_template get, by name; null keeps all."""
    grader: GraderName = GraderName.math
    """What counts as a right completion: `exact` text, an equal number (`numeric`), the same letter (`choice`), or mathematically the same (`math`)."""
    check_answers: int = 10_000
    """Records of each table whose answers are shown to the grader at the start, so that one that it cannot read is a broken record and not the end of a run; 0 shows it none [rows]."""
    num_train: int | None = None
    """At most this many training rows, a choice that data.split_seed fixes; null takes all [prompts]."""
    num_eval: int | None = 256
    """At most this many held-out rows, a choice that data.split_seed fixes; null takes all [prompts]."""
    eval_fraction: float = 0.1
    """Share of the rows that is held out where nothing else is there to evaluate on; 0 holds out none."""
    split_seed: int = 0
    """Seed of which rows are held out and which are taken; separate from the run's seed so that runs share one data set."""
    on_bad_row: OnBadRow = OnBadRow.stop
    """What a record that cannot be used does: `stop` refuses the whole data, naming file and line; `skip` leaves it out, counted and named in the log."""
    cache_dir: str = "outputs/.cache"
    """Folder of files made once and read at random places: parquet tables unpacked, streams as far as they were read."""


@dataclass(slots=True)
class TableDataConfig(SourceDataConfig):
    """Problems in jsonl, csv, tsv or parquet files, read where they lie: memory does not grow with their size."""

    eval_path: str | None = None
    """File, folder or pattern of the held-out rows; null: data.eval_fraction of the rows are held out."""
    sources: dict[str, TableSource] = field(default_factory=dict[str, TableSource])
    """What differs for a source of data.mixture: `{gsm: {path: gsm.jsonl, answer_after: "####"}}`. A name without an entry is itself the path."""


@dataclass(slots=True)
class HubDataConfig(SourceDataConfig):
    """Problems in a data set of the `datasets` library: a hub id, a folder that `save_to_disk` wrote, or one of data files."""

    name: str | None = None
    """Configuration of the data set, as `main` of openai/gsm8k; null: its only one."""
    split: str = "train"
    """Split to train on."""
    eval_split: str | None = None
    """Split to evaluate on, as `test`; null: data.eval_fraction of the rows are held out."""
    eval_path: str | None = None
    """Another data set to evaluate on, with columns of the same names: its split data.eval_split, or data.split where that is null."""
    revision: str | None = None
    """Branch, tag or commit of a data set on the hub; null: the newest."""
    streaming: bool = False
    """Read only as far as data.num_train asks, through a shuffle buffer, into a file of data.cache_dir, rather than fetch the whole data set."""
    shuffle_buffer: int = 10_000
    """Rows that a stream's shuffle holds, from which it draws at random; 1 keeps the order [rows]."""
    sources: dict[str, HubSource] = field(default_factory=dict[str, HubSource])
    """What differs for a source of data.mixture: `{gsm: {path: openai/gsm8k, name: main, answer_after: "####"}}`. A name without an entry is itself the path."""


@dataclass(frozen=True, slots=True)
class Source:
    """One source with everything settled: what its entry in data.sources says, else what `data` says."""

    label: str
    """Its name in data.mixture; empty for the only source."""
    weight: float
    path: str
    prompt_column: str | None
    answer_column: str
    answer_after: str | None
    answer_boxed: bool
    name: str | None = None
    split: str = ""
    eval_split: str | None = None
    revision: str | None = None


def settled_sources(config: TableDataConfig | HubDataConfig) -> list[Source]:
    """The sources of a configuration in the order of its mixture; none where neither path nor mixture is set."""
    if not config.mixture:
        return [] if config.path is None else [_settled(config, "", 1.0, TableSource(path=config.path))]
    return [
        _settled(config, label, weight, config.sources.get(label) or TableSource())
        for label, weight in config.mixture.items()
    ]


def held_out_source(config: HubDataConfig) -> Source | None:
    """The data set that is evaluated on, where it is another than those trained on."""
    if config.eval_path is None:
        return None
    own = replace(config, name=None, split=config.eval_split or config.split, revision=None)
    return _settled(own, "", 1.0, HubSource(path=config.eval_path))


def _settled(config: TableDataConfig | HubDataConfig, label: str, weight: float, own: TableSource) -> Source:
    after = own.answer_after if own.answer_after is not None or own.answer_boxed else config.answer_after
    boxed = own.answer_boxed if own.answer_boxed is not None else config.answer_boxed and own.answer_after is None
    columns = Source(
        label=label,
        weight=weight,
        path=own.path or label,
        prompt_column=own.prompt_column or config.prompt_column,
        answer_column=own.answer_column or config.answer_column,
        answer_after=after,
        answer_boxed=boxed,
    )
    if not isinstance(config, HubDataConfig):
        return columns
    hub = own if isinstance(own, HubSource) else HubSource()
    return replace(
        columns,
        name=hub.name or config.name,
        split=hub.split or config.split,
        eval_split=hub.eval_split or config.eval_split,
        revision=hub.revision or config.revision,
    )
