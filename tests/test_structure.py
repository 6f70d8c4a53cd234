"""The house: imports go one way, without circles."""

from __future__ import annotations

from pathlib import Path

import grimp
import pytest

SOURCES = Path(__file__).resolve().parent.parent / "src"
PACKAGES = sorted(module.parent.name for module in SOURCES.glob("*/__init__.py"))


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph(*PACKAGES, cache_dir=None)


def test_no_module_is_in_a_circle_of_imports(graph: grimp.ImportGraph):
    """Imports for types alone count."""
    circles = []
    below: dict[str, set[str]] = {
        module: graph.find_modules_directly_imported_by(module) for module in graph.modules
    }
    while leaves := {module for module, imported in below.items() if not imported & below.keys()}:
        below = {module: imported for module, imported in below.items() if module not in leaves}
    circles = sorted(module for module in below if any(module in below[other] for other in below))
    assert not circles, "move what two of these need into a module below them, or pass it as a parameter"
