"""`python -m lab`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lab.cache import Cache
from lab.errors import LabError
from lab.image import build
from lab.layers import REPOSITORY

CACHE = REPOSITORY / ".cache/lab"


def main() -> int:
    """The exit status."""
    arguments = _parser().parse_args()
    try:
        build(Cache(arguments.cache))
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lab", description=__doc__)
    parser.add_argument("--cache", type=Path, default=CACHE)
    parser.add_argument("command", choices=["build"])
    return parser
