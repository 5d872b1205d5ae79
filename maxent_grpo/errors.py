"""The few kinds of error a user of this package meets.

Each message says what is wrong with which values, why it matters and what to do. All are picklable and carry plain text.
"""


class MaxentGrpoError(Exception):
    """Root of every error raised on purpose by this package."""


class ConfigError(MaxentGrpoError, ValueError):
    """One or more settings are wrong; ``problems`` holds one sentence for each.

    Raised before torch is imported. The command line prints the sentences without a traceback and exits with status 2.
    """

    def __init__(self, problems: list[str] | str) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        count = len(self.problems)
        head = f"{count} configuration problem{'s' if count != 1 else ''}:"
        return "\n".join([head, *(f"  - {problem}" for problem in self.problems)])


WRONG_SETTINGS = 2
"""Exit status of a command, a run or a job whose settings are wrong."""


def exit_status(error: BaseException) -> int:
    """What a process that ends with the error exits with."""
    return WRONG_SETTINGS if isinstance(error, ConfigError) else 1


class DataError(MaxentGrpoError, ValueError):
    """A dataset or a row of it cannot be used: unreadable, empty, too small, or malformed."""


class NotReachedError(DataError):
    """A data set is on a hub that cannot be reached, and not in the cache of an earlier run."""


class RewardError(MaxentGrpoError, ValueError):
    """A reward term raised, or it or an own advantage rule returned something other than finite numbers (or None)."""


class GenerationError(MaxentGrpoError, RuntimeError):
    """The sampler could not deliver completions within its retry limit."""


class NonFiniteError(MaxentGrpoError, ArithmeticError):
    """A loss, gradient or log-probability is NaN or infinite; raised before the optimiser step."""


class NonFiniteUpdateError(NonFiniteError):
    """Weights that the optimiser step has just made give NaN or infinite numbers: the step can be neither left out nor saved."""


class StorageError(MaxentGrpoError, OSError):
    """A file of the run cannot be written: the disk is full, a quota is used up, or the folder became read-only."""


class CheckpointError(MaxentGrpoError, RuntimeError):
    """A checkpoint is missing, half-written, or belongs to a different objective or dataset."""


class PeerError(MaxentGrpoError, RuntimeError):
    """Another process of the run failed, or is gone; ``is_said``: the user has been told by a process that knew first.

    ``status`` is the exit status of all of them.
    """

    def __init__(self, text: str, status: int = 1, is_said: bool = True) -> None:
        super().__init__(text, status, is_said)
        self.text, self.status, self.is_said = text, status, is_said

    def __str__(self) -> str:
        return self.text
