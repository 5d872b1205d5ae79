"""The directory of a run: made once, refused when another run lives there, with its configuration and its log."""

from __future__ import annotations

import logging
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from maxent_grpo.config.preflight import resumes, run_marks
from maxent_grpo.config.quoting import setting_word
from maxent_grpo.config.secrets import redacted
from maxent_grpo.errors import ConfigError
from maxent_grpo.report.atomic import PARTIAL, storage_errors, write_atomically
from maxent_grpo.report.read import CONFIG_FILE, MODULES_COMMENT, OPTIONS_COMMENT
from maxent_grpo.telemetry.quiet import QuietWriter

LOG_FILE = "run.log"
PACKAGE_LOGGER = "maxent_grpo"


def prepare_run_dir(path: str | Path, resumed_from: str | Path | None = None) -> Path:
    """Create the run directory and return it; an existing one is accepted if it holds no run, or the run being resumed.

    Args:
        path: the run directory (`run.dir`).
        resumed_from: run directory or checkpoint folder that the run continues; None for a fresh run.

    Raises:
        ConfigError: another run lives there, or the folder cannot be made.
    """
    run_dir = Path(path)
    marks = run_marks(run_dir)
    if marks and not resumes(resumed_from, run_dir):
        other = "" if resumed_from is None else f", and it is not the run of checkpoint.resume_from={resumed_from}"
        raise ConfigError(
            f"run.dir={run_dir} already holds a run ({', '.join(marks)}){other}: its record would be mixed with this "
            "run's; choose another run.dir, remove the folder, or continue that run with "
            f"{setting_word('checkpoint.resume_from', str(run_dir))}"
        )
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"run.dir={run_dir} cannot be created ({error}): choose a folder you can write to") from error
    return run_dir


def remove_partials(run_dir: Path) -> None:
    """Delete what a process that was killed while it wrote has left: files and folders under a name of work in progress."""
    for pattern in (f".*{PARTIAL}", f".*{PARTIAL}-*", ".*.replaced-*"):
        for path in run_dir.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def write_config(
    run_dir: Path, yaml_text: str, options: Mapping[str, str] | None = None, modules: Sequence[str] = ()
) -> Path:
    """Write config.yaml: the resolved settings, headed by comments with the chosen option of each group and the modules that added any.

    Reports read the method's name from the first comment (``# options: model=tiny ... scoring=maxent``).
    """
    words = " ".join(f"{group}={option}" for group, option in (options or {}).items())
    comments = [f"{OPTIONS_COMMENT} {words}\n"] if words else []
    comments += [f"{MODULES_COMMENT} {' '.join(modules)}\n"] if modules else []
    text = "".join([*comments, yaml_text])
    path = run_dir / CONFIG_FILE
    write_atomically(path, lambda file: file.write(text.encode("utf-8")))
    return path


class _WithoutSecrets(logging.Formatter):
    """Leaves out what must not be written down, wherever in a message or traceback it stands."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, redacted."""
        return redacted(super().format(record))


class _LogFile(logging.FileHandler):
    """A log that cannot be written costs its lines and not the run, and says so once."""

    is_broken = False

    def handleError(self, record: logging.LogRecord) -> None:
        """Tell the first failure of the file; others are logging's to tell."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        else:
            self.tell(error)

    def tell(self, error: OSError) -> None:
        """Say once that lines are lost."""
        if not self.is_broken:
            self.is_broken = True
            print(
                f"{self.baseFilename} cannot be written ({error.strerror}): its further lines are lost", file=sys.stderr
            )

    def close(self) -> None:
        """Close, also a file whose last lines the system does not take."""
        try:
            super().close()
        except OSError as error:
            self.tell(error)


class RunLog(QuietWriter):
    """Writes run.log: what the package's loggers say, and every note, with time, level and module."""

    def __init__(self, run_dir: Path) -> None:
        self._logger = logging.getLogger(PACKAGE_LOGGER)
        with storage_errors(run_dir / LOG_FILE):
            self._handler = _LogFile(run_dir / LOG_FILE, encoding="utf-8")
        self._handler.setLevel(logging.INFO)
        self._handler.setFormatter(_WithoutSecrets("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
        self._previous_level = self._logger.level
        self._logger.addHandler(self._handler)
        if self._logger.getEffectiveLevel() > logging.INFO:
            self._logger.setLevel(logging.INFO)

    def start(self, total_steps: int, first_step: int) -> None:
        """Record the range of steps."""
        self.write_note(f"steps {first_step + 1} to {total_steps}")

    def write_note(self, message: str) -> None:
        """Record the sentence."""
        self._logger.info("%s", message)

    def flush(self) -> None:
        """Hand the lines to the operating system."""
        try:
            self._handler.flush()
        except OSError as error:
            self._handler.tell(error)

    def close(self) -> None:
        """Detach from the loggers and close the file; closing again does nothing."""
        self.detach()
        self._handler.close()

    def detach(self) -> None:
        """Stop recording and give the package's logger its previous level back."""
        if self._handler in self._logger.handlers:
            self._logger.removeHandler(self._handler)
            self._logger.setLevel(self._previous_level)
