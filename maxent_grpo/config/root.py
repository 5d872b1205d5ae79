"""The root of the configuration: one field per group, and the seed."""

from dataclasses import dataclass

from omegaconf import MISSING

from maxent_grpo.config.checkpoint import CheckpointConfig
from maxent_grpo.config.controller import ControllerConfig
from maxent_grpo.config.data import DataConfig
from maxent_grpo.config.evaluation import EvaluationConfig
from maxent_grpo.config.generation import GenerationConfig
from maxent_grpo.config.logging import LoggingConfig
from maxent_grpo.config.model import ModelConfig
from maxent_grpo.config.optimization import OptimizationConfig
from maxent_grpo.config.reward import RewardConfig
from maxent_grpo.config.run import RunConfig
from maxent_grpo.config.scoring import ScoringConfig


@dataclass(slots=True)
class RootConfig:
    """A whole run. Each group must be chosen and must be of the right kind."""

    model: ModelConfig = MISSING
    data: DataConfig = MISSING
    generation: GenerationConfig = MISSING
    scoring: ScoringConfig = MISSING
    optimization: OptimizationConfig = MISSING
    controller: ControllerConfig = MISSING
    reward: RewardConfig = MISSING
    evaluation: EvaluationConfig = MISSING
    logging: LoggingConfig = MISSING
    checkpoint: CheckpointConfig = MISSING
    run: RunConfig = MISSING
    seed: int = 0
    """Seed of data order and sampling; problems, warm start and evaluation have seeds of their own."""
