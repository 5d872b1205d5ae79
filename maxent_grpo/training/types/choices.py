"""Names of the choices a setting can take. Pure data: shared by the configuration and by the code that acts on them."""

from enum import StrEnum


class AdvantageKind(StrEnum):
    """Credit axis: how a group's utilities become per-completion advantages."""

    none = "none"
    group_mean = "group_mean"
    group_std = "group_std"
    batch_std = "batch_std"
    leave_one_out = "leave_one_out"
    whitened = "whitened"
    pass_at_k = "pass_at_k"
    soft = "soft"
    function = "function"


class Shaping(StrEnum):
    """Credit axis: how a utility changes with the rest of its group before advantages are taken."""

    none = "none"
    uniqueness = "uniqueness"
    unlikeliness = "unlikeliness"


class RowWeighting(StrEnum):
    """Credit axis: how much each completion's advantage counts within its group, and each group in the step."""

    uniform = "uniform"
    tempered = "tempered"
    prompt_scaled = "prompt_scaled"
    answer_entropy = "answer_entropy"


class Surrogate(StrEnum):
    """Clip axis: what is maximised per token, given its ratio and advantage."""

    clip = "clip"
    weighted_likelihood = "weighted_likelihood"
    soft_gate = "soft_gate"


class TokenSelection(StrEnum):
    """Clip axis: which tokens train, by statistics of the whole step."""

    all = "all"
    clip_cov = "clip_cov"
    kl_cov = "kl_cov"
    high_entropy = "high_entropy"


class GroupLoss(StrEnum):
    """Regulariser axis: the listwise term, a function of the sequence scores of a whole group."""

    cross_entropy = "cross_entropy"
    centred_likelihood = "centred_likelihood"
    importance_likelihood = "importance_likelihood"
    conditional = "conditional"
    squared_residual = "squared_residual"


class RatioLevel(StrEnum):
    """Ratio axis: one importance ratio per token, or one (length-normalised) per sequence."""

    token = "token"
    sequence = "sequence"


class Reduction(StrEnum):
    """Reduction axis: the weight c_i of a sequence's token losses, always over step-global counts."""

    token = "token"
    sequence = "sequence"
    constant = "constant"
    micro_batch = "micro_batch"


class KlEstimator(StrEnum):
    """Per-token estimator of the divergence from the reference."""

    k1 = "k1"
    k2 = "k2"
    k3 = "k3"
    k3_is = "k3_is"


class ScoreMode(StrEnum):
    """How token log-probabilities become a sequence score in the listwise term."""

    sum = "sum"
    const = "const"
    mean = "mean"
    auto = "auto"


class NeutralGroups(StrEnum):
    """What the listwise term does with groups whose utilities are all equal."""

    keep = "keep"
    skip_all_wrong = "skip_all_wrong"
    skip = "skip"


class EqualGroups(StrEnum):
    """What the loss does with groups whose utilities are all equal."""

    keep = "keep"
    drop = "drop"


class Truncation(StrEnum):
    """What happens to a completion that reached the length limit without an end token."""

    keep = "keep"
    mask_loss = "mask_loss"
    exclude = "exclude"


class ReferenceSource(StrEnum):
    """Where reference log-probabilities come from."""

    auto = "auto"
    model = "model"
    none = "none"


class BehaviorSource(StrEnum):
    """Where the log-probabilities under the behaviour policy come from."""

    model = "model"
    sampler = "sampler"
    vllm = "vllm"


class MismatchMode(StrEnum):
    """Correction of the gap between the sampler's and the trainer's log-probabilities."""

    bypass = "bypass"
    token_truncate = "token_truncate"
    token_mask = "token_mask"
    sequence_truncate = "sequence_truncate"
    sequence_mask = "sequence_mask"
    geometric_truncate = "geometric_truncate"
    geometric_mask = "geometric_mask"


class EntropyMode(StrEnum):
    """How token entropy is measured: over the whole vocabulary, or by the drawn token."""

    exact = "exact"
    sample = "sample"


class LongPrompts(StrEnum):
    """What happens to a prompt longer than the limit."""

    drop = "drop"
    truncate_left = "truncate_left"


class Duplicates(StrEnum):
    """Training rows whose prompt occurred before."""

    drop = "drop"
    keep = "keep"


class Overlap(StrEnum):
    """Training rows whose prompt is also held out."""

    stop = "stop"
    drop = "drop"
    allow = "allow"


class AnswerPart(StrEnum):
    """What of a completion a task's grader reads."""

    whole = "whole"
    tags = "tags"
    boxed = "boxed"


class GraderName(StrEnum):
    """What counts as a right completion of a problem whose answer is text."""

    exact = "exact"
    numeric = "numeric"
    choice = "choice"
    math = "math"


class OnBadRow(StrEnum):
    """What a record that cannot be used does."""

    stop = "stop"
    skip = "skip"


class ZeroSignalStep(StrEnum):
    """What an optimiser step does whose gradient is exactly zero."""

    skip = "skip"
    step = "step"


class ExactFigures(StrEnum):
    """Whether evaluation computes exact figures from every answer that there is."""

    auto = "auto"
    always = "always"
    never = "never"


class Pooling(StrEnum):
    """How the hidden states of a completion's tokens become one vector."""

    mean = "mean"
    last = "last"


class OnRewardError(StrEnum):
    """What an exception inside a reward term does."""

    stop = "stop"
    abstain = "abstain"


class RewardNormalization(StrEnum):
    """What of the rewards is normalised before credit is assigned."""

    none = "none"
    term = "term"
    sum = "sum"


class NormalizeBy(StrEnum):
    """Whose standard deviation a normalised reward is divided by."""

    group = "group"
    batch = "batch"


class FinishReason(StrEnum):
    """Why a completion ended."""

    eos = "eos"
    stop = "stop"
    length = "length"


class TargetSchedule(StrEnum):
    """How a controller's target moves with the optimiser step."""

    constant = "constant"
    linear = "linear"
    peak = "peak"


class KlTarget(StrEnum):
    """Which coefficient a KL controller moves, and with it which divergence it holds."""

    kl_beta = "kl_beta"
    listwise_beta = "listwise_beta"


class KlLaw(StrEnum):
    """How a KL controller moves its coefficient."""

    multiplicative = "multiplicative"
    additive = "additive"
    halving = "halving"
    pi = "pi"


class MetaMode(StrEnum):
    """Outer objective of the meta controller."""

    analytic = "analytic"
    first_order = "first_order"


class MetaOptimizer(StrEnum):
    """Optimiser of the meta controller, in log tau and log beta."""

    adam = "adam"
    sgd = "sgd"


class OptimizerJacobian(StrEnum):
    """What of the policy's update follows the gradient when a meta-gradient is taken through it."""

    frozen = "frozen"
    exact = "exact"
