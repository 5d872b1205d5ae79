"""How many bytes trainers exchange, by what each of them holds.

With weights of w bytes and gradients of g bytes, both in the type of the weights, before the ring's factor (n - 1) / n:

    everything is held    a slice 2 g (an all-reduce)
    states are divided    a slice g (to the owner), a step g (the new weights back)
    all is divided        a slice 2 w + g (weights for both passes, or w where the forward pass leaves them whole), a rollout w
"""

from __future__ import annotations

from maxent_grpo.training.memory_sharding import Sharding
from maxent_grpo.training.memory_sizes import Held, ModelShape, Runs
from maxent_grpo.training.step_time import Traffic


def traffic_of(shape: ModelShape, how: Sharding, *, to_engines: bool) -> Traffic:
    """The bytes of a slice, a step and a rollout; ``to_engines``: whether others than the trainers sample."""
    weights, gradients = shape.weights + shape.adapter, shape.trained
    sync = weights if to_engines else 0
    if Held.weights in how.divided:
        fetched = weights if Runs.backward in how.whole_for else 2 * weights
        return Traffic(fetched + gradients, each_rollout=weights, sync=sync)
    if Held.states in how.divided:
        return Traffic(gradients, gradients, sync=sync)
    return Traffic(2 * gradients, sync=sync)
