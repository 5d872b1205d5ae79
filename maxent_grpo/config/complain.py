"""What a command says to standard error: its name, a sentence, and no secret that a setting or an address in it holds."""

from __future__ import annotations

import sys

from maxent_grpo.config.secrets import redacted


def complain(program: str, sentence: object) -> None:
    """Print the sentence, or the message of an error, behind the name of the command."""
    print(f"{program}: {redacted(str(sentence))}", file=sys.stderr)
