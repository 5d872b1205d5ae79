"""The one table of configuration groups and their options, and its registration in Hydra's ConfigStore."""

from functools import cache

from hydra.core.config_store import ConfigNode, ConfigStore
from omegaconf import DictConfig, OmegaConf

from maxent_grpo.config.checkpoint import CheckpointConfig
from maxent_grpo.config.controller import (
    EffectiveSizeControllerConfig,
    EntropyControllerConfig,
    FixedControllerConfig,
    KlControllerConfig,
)
from maxent_grpo.config.controller_meta import MetaControllerConfig
from maxent_grpo.config.data import ColoringDataConfig, CountdownDataConfig, ReasoningGymDataConfig
from maxent_grpo.config.data_sources import HubDataConfig, TableDataConfig
from maxent_grpo.config.evaluation import EvaluationConfig
from maxent_grpo.config.generation import LocalGenerationConfig, VllmGenerationConfig
from maxent_grpo.config.logging import LoggingConfig, TensorBoardLoggingConfig, WandbLoggingConfig
from maxent_grpo.config.model import HfModelConfig, SmolLM2ModelConfig, TinyModelConfig
from maxent_grpo.config.optimization import AdamWConfig
from maxent_grpo.config.reward import MathRewardConfig, TaskRewardConfig, TermsRewardConfig
from maxent_grpo.config.root import RootConfig
from maxent_grpo.config.run import RunConfig
from maxent_grpo.config.scoring import (
    DrGrpoScoringConfig,
    GrpoScoringConfig,
    MaxEntListwiseScoringConfig,
    MaxEntScoringConfig,
)
from maxent_grpo.config.scoring_methods import (
    BnpoScoringConfig,
    CispoScoringConfig,
    ClipCovScoringConfig,
    DapoScoringConfig,
    DrGrpoScaledScoringConfig,
    GspoScoringConfig,
    GvpoScoringConfig,
    HighEntropyTokensScoringConfig,
    KlCovScoringConfig,
    MaxEntCenteredScoringConfig,
    MaxEntCondScoringConfig,
    MaxEntIsScoringConfig,
    PassKScoringConfig,
    ReinforcePpScoringConfig,
    RlooScoringConfig,
    SapoScoringConfig,
    SeedGrpoScoringConfig,
    SoftScoringConfig,
    TokenMaxEntScoringConfig,
    UniquenessScoringConfig,
    UnlikelinessScoringConfig,
    XdrScoringConfig,
)

OPTIONS: list[tuple[str, str, type]] = [
    ("model", "tiny", TinyModelConfig),
    ("model", "smollm2", SmolLM2ModelConfig),
    ("model", "hf", HfModelConfig),
    ("data", "coloring", ColoringDataConfig),
    ("data", "countdown", CountdownDataConfig),
    ("data", "table", TableDataConfig),
    ("data", "hub", HubDataConfig),
    ("data", "reasoning_gym", ReasoningGymDataConfig),
    ("generation", "local", LocalGenerationConfig),
    ("generation", "vllm", VllmGenerationConfig),
    ("scoring", "grpo", GrpoScoringConfig),
    ("scoring", "dr_grpo", DrGrpoScoringConfig),
    ("scoring", "maxent", MaxEntScoringConfig),
    ("scoring", "maxent_listwise", MaxEntListwiseScoringConfig),
    ("scoring", "bnpo", BnpoScoringConfig),
    ("scoring", "dapo", DapoScoringConfig),
    ("scoring", "rloo", RlooScoringConfig),
    ("scoring", "reinforce_pp", ReinforcePpScoringConfig),
    ("scoring", "gspo", GspoScoringConfig),
    ("scoring", "cispo", CispoScoringConfig),
    ("scoring", "sapo", SapoScoringConfig),
    ("scoring", "maxent_centered", MaxEntCenteredScoringConfig),
    ("scoring", "maxent_is", MaxEntIsScoringConfig),
    ("scoring", "maxent_cond", MaxEntCondScoringConfig),
    ("scoring", "soft", SoftScoringConfig),
    ("scoring", "gvpo", GvpoScoringConfig),
    ("scoring", "xdr", XdrScoringConfig),
    ("scoring", "dr_grpo_scaled", DrGrpoScaledScoringConfig),
    ("scoring", "seed_grpo", SeedGrpoScoringConfig),
    ("scoring", "token_maxent", TokenMaxEntScoringConfig),
    ("scoring", "uniqueness", UniquenessScoringConfig),
    ("scoring", "unlikeliness", UnlikelinessScoringConfig),
    ("scoring", "passk", PassKScoringConfig),
    ("scoring", "clip_cov", ClipCovScoringConfig),
    ("scoring", "kl_cov", KlCovScoringConfig),
    ("scoring", "high_entropy_tokens", HighEntropyTokensScoringConfig),
    ("optimization", "adamw", AdamWConfig),
    ("controller", "fixed", FixedControllerConfig),
    ("controller", "entropy", EntropyControllerConfig),
    ("controller", "effective_size", EffectiveSizeControllerConfig),
    ("controller", "kl", KlControllerConfig),
    ("controller", "meta", MetaControllerConfig),
    ("reward", "task", TaskRewardConfig),
    ("reward", "math", MathRewardConfig),
    ("reward", "terms", TermsRewardConfig),
    ("evaluation", "sampled", EvaluationConfig),
    ("logging", "files", LoggingConfig),
    ("logging", "wandb", WandbLoggingConfig),
    ("logging", "tensorboard", TensorBoardLoggingConfig),
    ("checkpoint", "files", CheckpointConfig),
    ("run", "local", RunConfig),
]
"""(group, option, dataclass): every option there is, in the order in which help and documentation list them."""

ROOT_SCHEMA = "root_schema"


class _Option(ConfigNode):
    """An entry of the store whose node is made of its dataclass when it is first read: a run reads one option of each group."""

    def __init__(self, name: str, declared: type, group: str | None = None) -> None:
        self.name, self.group, self.package, self.provider = f"{name}.yaml", group, None, None
        self._declared = declared
        self._copied: DictConfig | None = None

    @property
    def node(self) -> DictConfig:
        """The structured node; of the copy that the store hands out, its own."""
        return _structured(self._declared) if self._copied is None else self._copied

    @node.setter
    def node(self, value: DictConfig) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._copied = value


@cache
def _structured(declared: type) -> DictConfig:
    return OmegaConf.structured(declared)


def _shared(_memo: dict[int, object]) -> ConfigStore:
    """The store itself, as its own copy."""
    return ConfigStore.instance()


@cache
def register() -> None:
    """Register the root and every option, once in a process."""
    store = ConfigStore.instance()
    # Hydra copies its sources, and the whole store with them, at every composition, and copies each node again when it
    # loads it; the second copy is enough, and a third of the time of a composition is saved
    vars(store)["__deepcopy__"] = _shared
    store.repo[f"{ROOT_SCHEMA}.yaml"] = _Option(ROOT_SCHEMA, RootConfig)
    for group, name, node in OPTIONS:
        store.repo.setdefault(group, {})[f"{name}.yaml"] = _Option(name, node, group)
