"""The house: no circles, no crowd of small rooms, nothing above a size that is still read at one sitting."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import grimp
import pytest

from syntax import syntax_tree

SOURCES = Path(__file__).resolve().parent.parent / "src"
MODULES = [path for path in SOURCES.rglob("*.py") if "pb" not in path.relative_to(SOURCES).parts]

MOST_MODULES = {"k8s_rdma": 296, "k8s_rdma_demo": 46}
MOST_OWN_IMPORTS = {"k8s_rdma": 23.2, "k8s_rdma_demo": 15.5}
"""A thousand lines: how many statements import modules of either package."""


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph(*MOST_MODULES, cache_dir=None)


def test_no_module_is_in_a_circle_of_imports(graph: grimp.ImportGraph):
    """Imports for types alone count."""
    circles = []
    below: dict[str, set[str]] = {
        module: graph.find_modules_directly_imported_by(module) for module in graph.modules
    }
    while leaves := {module for module, imported in below.items() if not imported & below.keys()}:
        below = {module: imported for module, imported in below.items() if module not in leaves}
    circles = sorted(module for module in below if any(module in below[other] for other in below))
    assert not circles


def test_modules_are_few():
    counts = Counter(path.relative_to(SOURCES).parts[0] for path in MODULES)
    assert counts.keys() == MOST_MODULES.keys()
    assert not {package: count for package, count in counts.items() if count > MOST_MODULES[package]}


@pytest.mark.parametrize("package", MOST_OWN_IMPORTS)
def test_modules_import_little_of_their_own_package(package: str):
    lines = own = 0
    for path in MODULES:
        if path.relative_to(SOURCES).parts[0] != package:
            continue
        lines += len(path.read_text().splitlines())
        own += sum(
            isinstance(node, ast.ImportFrom) and (node.module or "").startswith("k8s_rdma")
            for node in ast.walk(syntax_tree(path))
        )
    assert 1000 * own / lines <= MOST_OWN_IMPORTS[package]
