"""`--record-coverage`: writes which branches of `src` each test function takes, for `coverage_map.py`.

Branches that a fixture of a module or a session takes belong to all tests that use it. Caches of our
modules are emptied before each function, because only the first caller would fill them. Branches of
processes that tests start are not recorded; tests that start some are listed. A function that fails, or that
is skipped with all its parameters, ends before it has reached all that it may reach, and is not known.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import pkgutil
import secrets
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / ".cache/coverage"
PACKAGES = ("k8s_rdma", "k8s_rdma_demo", "k8s_rdma_simulation")
STARTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system"})
"""Events that Python's audit hooks see when a process begins."""


def function_of(node_id: str) -> str:
    """Return the test function of a test: all its parameters are one."""
    return node_id.partition("[")[0]


class CoverageRecorder:
    """Records one process's tests; `data` has the branches by context, `tests` the rest.

    A context is a test function, or a fixture of a wider scope. Empty: imports, and code before tests.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        process = secrets.token_hex(8)  # numbers of processes are alike in namespaces
        self._tests = directory / f"tests.{process}.json"
        os.environ["COVERAGE_CORE"] = "ctrace"  # sys.monitoring knows no contexts
        self._coverage = importlib.import_module("coverage").Coverage(
            data_file=str(directory / f"data.{process}"),
            branch=True,
            source=[str(ROOT / "src")],
            config_file=False,
            messages=False,
        )
        self._context = ""
        self._fixtures: dict[str, set[str]] = defaultdict(set)
        self._seconds: dict[str, float] = defaultdict(float)
        self._outer: set[str] = set()
        self._passed: set[str] = set()
        self._failed: set[str] = set()
        self._coverage.start()
        _import_all()
        sys.addaudithook(self._on_audit_event)

    def _on_audit_event(self, event: str, arguments: Sequence[object]) -> None:
        if event in STARTS:
            self._outer.add(self._context)

    def _switch(self, context: str) -> None:
        if context != self._context:
            self._context = context
            _empty_caches()
            self._coverage.switch_context(context)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            info = getattr(item, "_fixtureinfo", None)  # pytest has no public name for it
            for definitions in info.name2fixturedefs.values() if info else ():
                wide = {_context_of(each) for each in definitions if each.scope != "function"}
                self._fixtures[function_of(item.nodeid)] |= wide

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        function = function_of(item.nodeid)
        self._switch(function)
        began = time.monotonic()
        try:
            return (yield)
        finally:
            self._seconds[function] += time.monotonic() - began

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.add(function_of(report.nodeid))
        elif report.passed and report.when == "call":
            self._passed.add(function_of(report.nodeid))

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> Generator[None, object, object]:
        if fixturedef.scope == "function":
            return (yield)
        before = self._context
        self._switch(_context_of(fixturedef))
        try:
            return (yield)
        finally:
            self._switch(before)

    def pytest_sessionfinish(self) -> None:
        self._coverage.stop()
        self._coverage.save()
        record = {
            "fixtures": {name: sorted(each) for name, each in sorted(self._fixtures.items())},
            "seconds": {name: self._seconds[name] for name in sorted(self._passed)},
            "outer": sorted(self._outer),
            "failed": sorted(self._failed),
        }
        self._tests.write_text(json.dumps(record))


def _context_of(fixture: pytest.FixtureDef[object]) -> str:
    return f"fixture {fixture.baseid}::{fixture.argname}"


def _import_all() -> None:
    """Import our modules in no context, so that no test seems to run the code of imports."""
    for package in PACKAGES:
        folder = importlib.import_module(package)
        for module in pkgutil.walk_packages(folder.__path__, f"{package}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)


def _empty_caches() -> None:
    for module in list(sys.modules.values()):
        if (getattr(module, "__file__", None) or "").startswith(str(ROOT)) and ".venv" not in module.__file__:
            for value in list(vars(module).values()):
                if isinstance(value, functools._lru_cache_wrapper):
                    value.cache_clear()
