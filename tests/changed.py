"""`--changed`: only the tests that a change concerns.

A change concerns a test module that changed, that imports a changed module, or that starts one of our
programs (which imports all that the program runs). Imports count through other modules; imports for types
alone do not. A file outside of tests/ also concerns the tests whose text names its folder: chart, docs, C.
"""

from __future__ import annotations

import ast
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from syntax import syntax_tree

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).resolve().parent.parent
OWN_FOLDERS = (ROOT / "tests", ROOT)
"""Where imports of modules that are not in `src` are looked up, as `pythonpath` in pyproject.toml has it."""

EVERYTHING = frozenset({"pyproject.toml", "requirements/dev.txt", "tests/conftest.py"})
PROGRAM = re.compile(r'"k8s-rdma"|"-m", "k8s_rdma|k8s_rdma\.cli')
"""A test that starts one of our programs; its imports are those of the command line."""

PROGRAM_MODULE = "k8s_rdma.cli.entry"
PACKAGES = ("k8s_rdma", "k8s_rdma_demo", "k8s_rdma_simulation")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--changed",
        nargs="?",
        const="HEAD",
        metavar="COMMIT",
        help="only tests that the changes since COMMIT concern (HEAD: what is not committed yet)",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    since: str | None = config.getoption("--changed")
    if since is None:
        return
    changed = changed_files(since)
    concerned = set(concerned_files({item.path for item in items}, changed))
    config.hook.pytest_deselected(items=[item for item in items if item.path not in concerned])
    items[:] = [item for item in items if item.path in concerned]


def changed_files(since: str) -> frozenset[str]:
    """Paths from the root, of files that differ from the commit or are new."""
    commands = (["diff", "--name-only", since], ["ls-files", "--others", "--exclude-standard"])
    return frozenset(line for command in commands for line in _git(command))


def _git(command: list[str]) -> list[str]:
    answer = subprocess.run(["git", *command], cwd=ROOT, check=False, capture_output=True, text=True)
    if answer.returncode:
        msg = f"--changed: {answer.stderr.strip()}"
        raise pytest.UsageError(msg)
    return answer.stdout.splitlines()


def concerned_files(test_files: Iterable[Path], changed: frozenset[str]) -> Iterator[Path]:
    """Those of the test files that one of the changed files concerns."""
    importers = _importers_of(changed)
    names = {f'"{path.split("/", maxsplit=1)[0]}' for path in changed if not path.startswith("tests/")}
    for test_file in test_files:
        texts = {path: path.read_text() for path in _own_imports(test_file)}
        if (
            changed & EVERYTHING
            or any(str(path.relative_to(ROOT)) in changed for path in texts)
            or any(not importers.isdisjoint(_product_imports(path)) for path in texts)
            or any(PROGRAM_MODULE in importers and PROGRAM.search(text) for text in texts.values())
            or any(name in text for name in names for text in texts.values())
        ):
            yield test_file


def _importers_of(changed: frozenset[str]) -> set[str]:
    """The changed modules of the product and all that import them."""
    import grimp  # noqa: PLC0415 - the lab's guests, which load this file as well, do not have it

    graph = grimp.build_graph(*PACKAGES, cache_dir=None, exclude_type_checking_imports=True)
    importers: set[str] = set()
    for path in changed:
        if path.startswith("src/") and path.endswith(".py"):
            module = path.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            importers.add(module)
            if module in graph.modules:
                importers |= graph.find_downstream_modules(module)
    return importers


@cache
def _imports(path: Path) -> frozenset[str]:
    """The modules that a file imports; of `from a import b` both `a` and `a.b`."""
    names: dict[str, None] = {}
    for node in ast.walk(syntax_tree(path)):
        if isinstance(node, ast.Import):
            names |= dict.fromkeys(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= dict.fromkeys([node.module, *(f"{node.module}.{alias.name}" for alias in node.names)])
    return frozenset(names)


def _product_imports(path: Path) -> frozenset[str]:
    return frozenset(name for name in _imports(path) if name.startswith("k8s_rdma"))


@cache
def _own_imports(path: Path) -> frozenset[Path]:
    """The file and the modules of tests/, lab/, bench/ ... that it imports, through others too."""
    reached, pending = {path}, [path]
    while pending:
        for name in _imports(pending.pop()):
            for module in _files_of(name) - reached:
                reached.add(module)
                pending.append(module)
    return frozenset(reached)


def _files_of(name: str) -> set[Path]:
    candidates = (folder / f"{name.replace('.', '/')}.py" for folder in OWN_FOLDERS)
    return {path for path in candidates if path.is_file()}
