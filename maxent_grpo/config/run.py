"""`run`: the run as a whole."""

from dataclasses import dataclass
from enum import StrEnum


class DeviceChoice(StrEnum):
    """Where tensors live."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


@dataclass(slots=True)
class RunConfig:
    """Where the run goes and what it runs on."""

    dir: str = "outputs/${now:%Y-%m-%d}/${now:%H-%M-%S}"
    """The run directory; it must not already hold a run, unless that run is the one being resumed."""
    device: DeviceChoice = DeviceChoice.auto
    """`auto` takes a GPU when there is one."""
    num_threads: int | None = None
    """CPU threads of torch; null leaves torch's own choice [threads]."""
    dry: bool = False
    """Only check everything and print the method, the batch arithmetic, token counts, a memory estimate and where the run would write; no weights are made and nothing is written."""
