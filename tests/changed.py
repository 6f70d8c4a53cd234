"""`--changed`: only the tests that a change concerns. `--quick`: only those of `quick.txt`.

A change concerns a test module that changed, that imports a changed module, or that starts one of our
programs (which imports all that the program runs). Imports count through other modules; imports for types
alone do not. A file outside of tests/ also concerns the tests whose text names its folder: chart, docs, C.

Comments and docstrings do not count, except for tests that read sources. Rows of a table concern the tests
that name them, or half of the table's other rows, in their text or in a file that they read.

The map of `make coverage-map` leaves out, of tests that only imports select, those which do not reach the
changed functions. It cannot judge tests that start processes, and those for which something
that they reach has changed since the map was made: these stay.
"""

from __future__ import annotations

import ast
import re
import subprocess
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from affected import Change, ChangedRows, affected
from coverage_map import CoverageMap, module_of, read_map
from coverage_recorder import RECORDS, CoverageRecorder, function_of
from covering import QUICK, read_quick
from syntax import syntax_tree

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

ROOT = Path(__file__).resolve().parent.parent
OWN_FOLDERS = (ROOT / "tests", ROOT)
"""The places of imported modules that are not in `src`, as `pythonpath` in pyproject.toml has them."""

EVERYTHING = frozenset({"pyproject.toml", "requirements/dev.txt", "tests/conftest.py"})
PROGRAM = re.compile(r'"k8s-rdma"|"-m", "k8s_rdma|k8s_rdma\.cli|forking_program')
"""A test that starts one of our programs; its imports are those of the command line."""

WHOLE = frozenset({"tests/test_repository.py", "tests/test_structure.py"})
"""Tests of the repository's shape, which `--quick` runs, too."""

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
    parser.addoption("--quick", action="store_true", help="only tests that tests/quick.txt lists")
    parser.addoption("--record-coverage", action="store_true", help="write records for make coverage-map")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--record-coverage") and (not is_distributing(config)):
        config.pluginmanager.register(CoverageRecorder(RECORDS), "coverage-recorder")


def is_distributing(config: pytest.Config) -> bool:
    """Report whether this process hands all tests to workers."""
    return bool(config.getoption("tx", None)) and not hasattr(config, "workerinput")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not load files without a test for `--quick`."""
    if not config.getoption("--quick") or not collection_path.name.startswith("test_"):
        return None
    path = collection_path.relative_to(ROOT).as_posix()
    return None if path in WHOLE or read_quick(QUICK.read_text()).get(path) else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--quick"):
        listed = read_quick(QUICK.read_text())
        _keep(config, items, {item for item in items if _is_quick(item, listed)})
    since: str | None = config.getoption("--changed")
    if since is not None:
        functions = {function_of(item.nodeid): item.path for item in items}
        concerned = concerned_functions(functions, since, read_map())
        _keep(config, items, {item for item in items if function_of(item.nodeid) in concerned})


def _is_quick(item: pytest.Item, listed: Mapping[str, frozenset[str]]) -> bool:
    file, _, function = function_of(item.nodeid).partition("::")
    return file in WHOLE or function in listed[file]


def _keep(config: pytest.Config, items: list[pytest.Item], kept: set[pytest.Item]) -> None:
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


@dataclass(frozen=True, slots=True)
class Effect:
    """The effect of changes: files of tests that they concern for certain, and functions of `src`."""

    files: frozenset[Path]
    functions: frozenset[tuple[str, str]]


def concerned_functions(functions: Mapping[str, Path], since: str, found: CoverageMap | None) -> set[str]:
    """Return those of the test functions that changes since a commit concern, by a map if there is one.

    functions: the files of test functions.
    """
    files = set(functions.values())
    changed = changed_files(since)
    change = _change(since, changed, found)
    by_imports = beside_functions(files, changed, change)
    by_imports |= set(concerned_files(files, frozenset(map(_path_of, change.touched))))
    if found is None or not _is_commit(found.commit):
        return {name for name, path in functions.items() if path in by_imports}
    concerned = {name: path for name, path in functions.items() if path in by_imports}
    return reaching(concerned, found, _effect(files, since, found), _effect(files, found.commit, found))


def reaching(
    functions: Mapping[str, Path], found: CoverageMap, effect: Effect, since_map: Effect
) -> set[str]:
    """Return those of the test functions that may reach a change.

    effect: the changes in question. since_map: all changes since the map was made; a test's reach is
    known if no such change concerns it.
    """
    chosen = set()
    for name, path in functions.items():
        reached = found.reached_by(name)
        is_known = reached is not None and path not in since_map.files and not reached & since_map.functions
        if path in effect.files or not is_known or reached & effect.functions:
            chosen.add(name)
    return chosen


def _effect(files: set[Path], since: str, found: CoverageMap) -> Effect:
    changed = changed_files(since)
    change = _change(since, changed, found)
    return Effect(frozenset(_certain(files, changed, change)), change.functions)


def _change(since: str, changed: frozenset[str], found: CoverageMap | None) -> Change:
    """Return the changes in `src` since a commit; a function that imports run affects its whole module."""
    files = sorted((ROOT / "src").rglob("*.py"))
    sources = {module_of(path.relative_to(ROOT).as_posix()): path for path in files}
    paths = {module_of(path): path for path in sorted(changed) if _is_source(path)}
    change = affected(
        {module: _source_at(since, path) for module, path in paths.items()},
        {module: sources[module].read_text() if module in sources else None for module in paths},
        {module: path.read_text() for module, path in sources.items()},
    )
    if found is None:
        return change
    at_import = {found.functions[number] for number in found.imported} & change.functions
    return replace(change, modules=change.modules | {module for module, _ in at_import})


def _certain(files: Iterable[Path], changed: frozenset[str], change: Change) -> set[Path]:
    """Return the test files that a change concerns for more than functions of `src`."""
    certain = beside_functions(files, changed, change)
    certain |= set(concerned_files(files, frozenset(map(_path_of, change.modules))))
    return certain | {path for path in files if _reads_constant(path, change.constants)}


def beside_functions(files: Iterable[Path], changed: frozenset[str], change: Change) -> set[Path]:
    """Return the test files that other files than sources concern, that read sources, or that name rows."""
    others = frozenset(path for path in changed if not _is_source(path))
    concerned = set(concerned_files(files, others))
    if others != changed:
        concerned |= {path for path in files if any('"src"' in text for text in _texts_of(path))}
    for rows in change.rows:
        concerned |= {
            path
            for path in concerned_files(files, frozenset({_path_of(rows.module)}))
            if names_rows(path, rows)
        }
    return concerned


def _texts_of(test_file: Path) -> list[str]:
    return [path.read_text() for path in sorted(_own_imports(test_file))]


def names_rows(test_file: Path, rows: ChangedRows) -> bool:
    """Report whether a test file names a changed row, or lists more than half of the table's other rows.

    A row is named in the file, in modules that it imports, or in other files of tests that these name. A key
    is also named in camelCase, as claims spell the keys of interfaces.
    """
    words = rows.words | {_camel_case(word) for word in rows.words}
    files = _files_naming(frozenset(words))
    named = any(
        any(_names(text, word) for word in words) or any(name in text for name in files)
        for text in _texts_of(test_file)
    )
    text = test_file.read_text()
    return named or sum(f'"{other}"' in text for other in rows.others) * 2 > len(rows.others)


def _names(text: str, word: str) -> bool:
    return word in text and re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text) is not None


def _camel_case(word: str) -> str:
    first, *parts = word.split("_")
    return first + "".join(map(str.capitalize, parts))


@cache
def _files_naming(words: frozenset[str]) -> frozenset[str]:
    """Return folders and names, after a quote, of files below tests/ that are no modules and have a word."""
    paths = (path for path in (ROOT / "tests").rglob("*") if path.is_file() and path.suffix != ".py")
    found = [path for path in paths if any(_names(path.read_text(errors="replace"), word) for word in words)]
    return frozenset(f'"{name}' for path in found for name in (path.parent.name, path.name))


def _reads_constant(test_file: Path, constants: Iterable[tuple[str, str]]) -> bool:
    return any(
        module in _imports(path) and re.search(rf"\b{re.escape(name)}\b", path.read_text())
        for path in _own_imports(test_file)
        for module, name in constants
    )


def _is_source(path: str) -> bool:
    return path.startswith("src/") and path.endswith(".py")


def _path_of(module: str) -> str:
    path = f"src/{module.replace('.', '/')}"
    return f"{path}/__init__.py" if (ROOT / path).is_dir() else f"{path}.py"


def _is_commit(name: str) -> bool:
    command = ["git", "cat-file", "-e", name]
    return subprocess.run(command, cwd=ROOT, check=False, capture_output=True).returncode == 0


def _source_at(commit: str, path: str) -> str | None:
    answer = subprocess.run(
        ["git", "show", f"{commit}:{path}"], cwd=ROOT, check=False, capture_output=True, text=True
    )
    return None if answer.returncode else answer.stdout


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
