"""Uniform random numbers that are a function of names: of a seed, a stream, a rollout, a row and a sample, and of nothing else.

Each completion has its own counter-based generator (Philox), keyed by a hash of those names. So its draws do not depend on
which other completions are sampled, in which order or in which process, and there is no generator state to save.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

KEY_BYTES = 16  # Philox4x64 takes a key of two 64-bit words


def completion_uniforms(
    seed: int, stream: str, rollout: int, row_id: str, sample_index: int, length: int
) -> NDArray[np.float64]:
    """``length`` numbers in [0, 1): number t decides token t of one completion.

    Any differing argument but ``length`` gives an independent sequence; a longer one continues a shorter one.

    Args:
        seed: the run's or the evaluation's seed.
        stream: what the numbers are for, such as "train" or "eval".
        rollout: index of the rollout.
        row_id: identity of the dataset row.
        sample_index: which of the row's completions in this rollout.
        length: how many numbers [tokens].
    """
    return batch_uniforms(seed, stream, rollout, [(row_id, sample_index)], length)[0]


def batch_uniforms(
    seed: int, stream: str, rollout: int, samples: Sequence[tuple[str, int]], length: int
) -> NDArray[np.float64]:
    """``completion_uniforms`` of each (row id, sample index), one row each: shape [len(samples), length]."""
    uniforms = np.empty((len(samples), length), dtype=np.float64)
    philox = np.random.Philox(key=0)
    generator = np.random.Generator(philox)
    # setting the key of one generator takes a tenth of the time of building one
    for row, key in zip(uniforms, _keys(seed, stream, rollout, samples), strict=True):
        philox.state = {
            "bit_generator": "Philox",
            "state": {"counter": np.zeros(4, dtype=np.uint64), "key": key},
            "buffer": np.zeros(4, dtype=np.uint64),
            "buffer_pos": 4,  # an empty buffer: the first draw computes the first block
            "has_uint32": 0,
            "uinteger": 0,
        }
        generator.random(out=row)
    return uniforms


def _keys(seed: int, stream: str, rollout: int, samples: Iterable[tuple[str, int]]) -> Iterable[NDArray[np.uint64]]:
    # the length before the free text makes the encoding unambiguous
    head = f"{int(seed)}:{int(rollout)}:{len(stream)}:{stream}:"
    for row_id, sample_index in samples:
        name = f"{head}{int(sample_index)}:{row_id}".encode("utf-8", "surrogatepass")
        yield np.frombuffer(blake2b(name, digest_size=KEY_BYTES).digest(), dtype="<u8").astype(np.uint64)
