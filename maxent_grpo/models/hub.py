"""Models and tokenizers of the Hugging Face hub, fetched into its cache; the only place that speaks to the hub about models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import list_repo_files, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from maxent_grpo.config.preflight_model import is_local
from maxent_grpo.errors import ConfigError

DESCRIPTION = ["*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken"]
"""Configuration and tokenizer."""
WEIGHTS = ["*.safetensors"]
CODE = ["*.py"]
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack")


def described_folder(setting: str, name: str, revision: str | None, *, with_code: bool = False) -> Path:
    """The folder of a model without its weights: the local one, or the hub's files in the local cache.

    Raises:
        ConfigError: the hub does not have it, does not give it, or cannot be reached and the cache does not have it.
    """
    if is_local(name):
        return Path(name)
    return _fetched(setting, name, revision, [*DESCRIPTION, *(CODE if with_code else [])])


def weights_folder(setting: str, name: str, revision: str | None) -> Path:
    """The same with the weights, safetensors only.

    Raises:
        ConfigError: as above, or there are weights of other formats only.
    """
    if is_local(name):
        return Path(name)
    folder = _fetched(setting, name, revision, WEIGHTS)
    if not any(folder.glob("*.safetensors")):
        raise ConfigError(f"{setting}={name}: {_without_safetensors(name, revision)}")
    return folder


def _fetched(setting: str, name: str, revision: str | None, patterns: Sequence[str]) -> Path:
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(patterns), ignore_patterns=["*/*"]))
    except (HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled, HFValidationError, OSError) as error:
        raise ConfigError(f"{setting}={name}: {hub_problem(error, revision)}") from error


def hub_problem(error: Exception, revision: str | None) -> str:
    """What an error of the hub means for the user, and what to do."""
    if isinstance(error, GatedRepoError):
        return (
            "is gated: its owner gives it to those who have accepted its terms; accept them on its page, and log in here with "
            "`hf auth login` (or set HF_TOKEN)"
        )
    if isinstance(error, RepositoryNotFoundError):
        return (
            "is no folder here, and the hub has no model of that name that you may see; check the spelling (owner/name), or log "
            "in with `hf auth login` if it is private"
        )
    if isinstance(error, RevisionNotFoundError):
        return f"has no model.revision={revision}; name a branch, tag or commit of it, or write model.revision=null"
    if isinstance(error, HFValidationError):
        return "is neither a folder here nor a name that the hub could have"
    if isinstance(error, HfHubHTTPError):
        return f"the hub refused the request ({_first_line(error)}); try again later, or name a local folder"
    return (
        "is no folder here, and the hub cannot be reached (or HF_HUB_OFFLINE is set) while its cache here does not have it; "
        "download it where there is a network with `hf download`, and name the folder"
    )


def _without_safetensors(name: str, revision: str | None) -> str:
    try:
        pickles = [file for file in list_repo_files(name, revision=revision) if file.endswith(PICKLES)]
    except (HfHubHTTPError, OfflineModeIsEnabled, OSError):
        pickles = []
    if pickles:
        return (
            f"its weights are pickles ({pickles[0]}), which can run any code when they are read and are refused; name a model or "
            "a revision with safetensors"
        )
    return "holds no weights as safetensors; name a model that does"


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
