"""Help of commands whose arguments are written name=value."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def helped(arguments: Sequence[str], command: str, usage: str, description: str, epilog: str) -> bool:
    """Print a command's help if it was asked for, or if nothing was said at all; whether it was printed."""
    if arguments and not {"--help", "-h"} & set(arguments):
        return False
    argparse.ArgumentParser(
        prog=f"python -m maxent_grpo {command}",
        usage=f"python -m maxent_grpo {command} {usage}",
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).print_help()
    return True
