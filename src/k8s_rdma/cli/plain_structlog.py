"""structlog without rich, for processes that run for long.

Its console renderer, which only a terminal has a use for, loads rich where that is installed: 4 MiB in every
process of every node.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from types import ModuleType


def load_structlog() -> None:
    """Load structlog as if there were no rich; to be called before anything else loads it.

    Whoever asks for rich afterwards gets it. Source: The Python Language Reference, section 5.3.1: None in
    `sys.modules` is a module that is not found.
    """
    if "rich" in sys.modules:
        return
    sys.modules["rich"] = cast("ModuleType", None)
    try:
        import structlog  # noqa: F401
    finally:
        del sys.modules["rich"]
