"""What a GPU's data sheet says, and what work then costs on it, for plans where nothing was measured.

    seconds of a pass      = operations / (peak * share)
    seconds of decoding    = max(bytes of weights and cache / (bandwidth * share) + starting the operations,
                                 operations / (peak * share))

Operations are those of ``training.types.flops``. The shares are assumptions, stated wherever numbers made with them are shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from maxent_grpo.training.memory_sizes import ModelShape
from maxent_grpo.training.step_time import Costs, Links, Rate
from maxent_grpo.training.types.flops import ComputeShape

GIB, GB, TERA = 2**30, 1e9, 1e12


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU in a node of eight, by its data sheet."""

    name: str
    memory: int
    """What a program sees of it [bytes]."""
    flops: float
    """Dense matrix products in bfloat16 [FLOP/s]."""
    flops_wide: float
    """In float32, which torch multiplies without shortening unless it is told to [FLOP/s]."""
    bandwidth: float
    """Of its memory [bytes/s]."""
    inside: float
    """To the other GPUs of its node, each way [bytes/s]."""
    between: float
    """Its share of the node's network, each way [bytes/s]."""
    sequences: int = 256
    """That vLLM decodes together at most unless it is told otherwise (`max_num_seqs`): more on those of at least 70 GiB but A100s."""

    def peak(self, itemsize: int) -> float:
        """Matrix products of numbers of so many bytes [FLOP/s]."""
        return self.flops_wide if itemsize >= 4 else self.flops


GPUS: Mapping[str, Gpu] = {
    "a100-40": Gpu("A100 SXM 40 GB", int(39.4 * GIB), 312 * TERA, 19.5 * TERA, 1555 * GB, 300 * GB, 25 * GB),
    "a100": Gpu("A100 SXM 80 GB", int(79.2 * GIB), 312 * TERA, 19.5 * TERA, 2039 * GB, 300 * GB, 25 * GB),
    "h100": Gpu("H100 SXM 80 GB", int(79.1 * GIB), 989 * TERA, 67 * TERA, 3350 * GB, 450 * GB, 50 * GB, 1024),
    "h200": Gpu("H200 SXM 141 GB", int(139.8 * GIB), 989 * TERA, 67 * TERA, 4800 * GB, 450 * GB, 50 * GB, 1024),
    "l40s": Gpu("L40S 48 GB, PCIe", int(44.4 * GIB), 362 * TERA, 91.6 * TERA, 864 * GB, 32 * GB, 12.5 * GB),
}
"""Memory, peaks and links of the vendor's data sheets; the network is the usual one beside it: 400, 200 or 100 Gbit/s for each GPU."""


@dataclass(frozen=True, slots=True)
class Assumptions:
    """Shares of what a data sheet promises."""

    passes: float = 0.4
    """Of the peak, in forward and backward passes."""
    prefill: float = 0.5
    """Of the peak, reading prompts."""
    decoding: float = 0.6
    """Of the memory's bandwidth, and of the peak, while sampling."""
    links: float = 0.7
    """Of a link, in an exchange."""
    start: float = 5e-6
    """Starting an operation of a program that was not compiled [s]."""
    operations: int = 40
    """Operations of a layer in a decoding step."""
    spread: float = 0.8
    """Of an engine's division over several GPUs."""
    overlap: float = 0.8
    """Of the passes' time, during which exchanges cost nothing."""
    files: float = 2e9
    """Weights that go to servers through a folder: written, read and laid out anew [bytes/s]."""

    def text(self) -> str:
        """All of them in a sentence."""
        return (
            f"{self.passes:.0%} of the peak in training, {self.prefill:.0%} reading prompts; {self.decoding:.0%} of the memory's "
            f"bandwidth in decoding; {self.links:.0%} of the links, hidden behind up to {self.overlap:.0%} of the passes; "
            f"{self.files / GB:g} GB/s of weights through files; {1e6 * self.start:g} us to start each of {self.operations} operations of a layer where decoding is not compiled"
        )


def links_of(gpu: Gpu, per_node: int, assumed: Assumptions, *, by_files: bool = False) -> Links:
    """What exchanges between such GPUs get; ``by_files``: whether weights reach engines through a folder."""
    engines = assumed.files if by_files else 0.0
    return Links(gpu.inside * assumed.links, gpu.between * assumed.links, per_node, assumed.overlap, engines)


def pass_rate(compute: ComputeShape, flops: float, *, backward: bool = False) -> Rate:
    """Seconds of a pass by its operations, at so many a second."""
    token = 2 * (compute.body + compute.trained) if backward else 2 * compute.body
    scored = 2 * compute.head * (1 + compute.head_is_trained if backward else 1)
    pair = (8 if backward else 4) * compute.layers * compute.attention
    return Rate(0.0, token / flops, pair / flops, scored / flops)


def costs_of(
    gpu: Gpu, shape: ModelShape, compute: ComputeShape, context: float, assumed: Assumptions, *, compiled: bool
) -> Costs:
    """What work takes on one such GPU.

    Args:
        gpu: the GPU.
        shape: of the model.
        compute: its operations.
        context: mean tokens whose keys and values a decoding step reads for each sequence.
        assumed: the shares.
        compiled: whether sampling starts its operations together, as an engine with CUDA graphs does.
    """
    memory, peak = gpu.bandwidth * assumed.decoding, gpu.peak(shape.itemsize)
    start = 0.0 if compiled else shape.layers * assumed.operations * assumed.start
    token = 2 * (compute.body + compute.head) + 4 * compute.layers * compute.attention * context
    # weight, gradient and two moments are read, and all but the gradient written; clipping reads it twice and writes it
    update = (10 * shape.updated + (shape.trained if shape.master else 0)) / gpu.bandwidth
    return Costs(
        prefill=pass_rate(compute, peak * assumed.prefill),
        decode_step=shape.weights / memory + start,
        decode_token=shape.cache_per_token * context / memory,
        decode_compute=token / (peak * assumed.decoding),
        forward=pass_rate(compute, peak * assumed.passes),
        backward=pass_rate(compute, peak * assumed.passes, backward=True),
        update=update,
    )
