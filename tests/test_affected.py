"""Changes of sources affect the functions that could behave in another way."""

from __future__ import annotations

import pytest

from affected import Change, affected

DRIVERS = """
import errno
from k8s.types import Rate

DRIVERS = dict(mlx5=Rate(1))
NAMES = sorted(DRIVERS)

class Driver:
    name: str = "mlx5"

    def rate(self):
        return 1

def rates():
    return DRIVERS

def names():
    return NAMES

def other():
    return 2
"""
READER = """
from k8s.drivers import DRIVERS
from k8s import drivers

def read():
    return DRIVERS["mlx5"]

def read_names():
    return drivers.NAMES

def other():
    return 3
"""


def change_of(before: str, now: str) -> Change:
    changed = DRIVERS.replace(before, now, 1)
    assert changed != DRIVERS
    sources = {"k8s.drivers": changed, "k8s.reader": READER}
    return affected({"k8s.drivers": DRIVERS}, {"k8s.drivers": changed}, sources)


@pytest.mark.parametrize(
    ("before", "now", "functions"),
    [
        ("return 2", "return 3", {"drivers.other"}),
        ("return 1", "return 3", {"drivers.Driver.rate"}),
        ("return NAMES", "# faster\\n    return NAMES", set()),
        ("def other", "def added():\\n    return 4\\n\\ndef other", set()),
        ("NAMES = ", "MORE = 1\\nNAMES = ", set()),
        ("Rate(1)", "Rate(2)", {"drivers.rates", "drivers.names", "reader.read", "reader.read_names"}),
        ("sorted(", "list(", {"drivers.names", "reader.read_names"}),
    ],
)
def test_change_affects_functions_whose_text_or_constants_changed(before: str, now: str, functions: set[str]):
    change = change_of(before, now.replace("\\n", "\n"))
    assert {f"{module.removeprefix('k8s.')}.{name}" for module, name in change.functions} == functions
    assert not change.modules


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ('name: str = "mlx5"', 'name: str = "ice"'),
        ("    def rate(self):\n        return 1", "    def speed(self):\n        return 1"),
        ("def rate(self)", "def rate(self, vf=0)"),
        ("def other", "@app.command()\ndef added():\n    return 4\n\ndef other"),
        ("import errno", "import errno\nerrno.register()"),
        ("def other", "def len(of):\n    return 4\n\ndef other"),
    ],
)
def test_change_of_classes_tables_and_names_of_python_affects_the_whole_module(before: str, now: str):
    assert change_of(before, now).modules == {"k8s.drivers"}


def test_class_that_reads_a_changed_constant_affects_its_whole_module():
    reader = "from k8s.drivers import DRIVERS\n\nclass Machine:\n    driver = DRIVERS\n"
    changed = DRIVERS.replace("Rate(1)", "Rate(2)")
    sources = {"k8s.drivers": changed, "k8s.reader": reader}
    assert affected({"k8s.drivers": DRIVERS}, {"k8s.drivers": changed}, sources).modules == {"k8s.reader"}


@pytest.mark.parametrize(("before", "now"), [(None, DRIVERS), (DRIVERS, None)])
def test_module_that_is_new_or_gone_is_affected_as_a_whole(before: str | None, now: str | None):
    change = affected({"k8s.drivers": before}, {"k8s.drivers": now}, {})
    whole = frozenset({"k8s.drivers"})
    assert change == Change(modules=whole, touched=whole)


TABLES = """
from dataclasses import dataclass

SPEEDS = {"mlx5": rate(1), "ice": rate(2, "E810")}

@dataclass(frozen=True, kw_only=True)
class Options:
    \"\"\"Options.\"\"\"

    vlan: int = 0
    mtu: int = 0

    def known(self):
        \"\"\"Return whether something is known.\"\"\"
        return self.vlan

def names():
    return SPEEDS
"""


def change_of_tables(before: str, now: str, head: str = "") -> Change:
    old, new = head + TABLES, head + TABLES.replace(before, now, 1)
    assert old != new
    return affected({"k8s.tables": old}, {"k8s.tables": new}, {"k8s.tables": new})


@pytest.mark.parametrize(
    ("before", "now", "words", "others"),
    [
        ("rate(1)", 'rate(1), "igb": rate(3)', {"igb"}, {"mlx5", "ice"}),
        ('rate(2, "E810")', 'rate(2, "E830")', {"ice", "E810", "E830"}, {"mlx5"}),
        ('"mlx5": rate(1), ', "", {"mlx5"}, {"ice"}),
        ("    mtu: int = 0", "    mtu: int = 0\n    dad: bool = True", {"dad"}, {"vlan", "mtu"}),
        ("    mtu: int = 0\n", "", {"mtu"}, {"vlan"}),
    ],
    ids=["new row", "other row", "row gone", "new field", "field gone"],
)
def test_change_of_rows_affects_those_who_name_them(before: str, now: str, words: set[str], others: set[str]):
    change = change_of_tables(before, now)
    assert [(rows.words, rows.others) for rows in change.rows] == [(words, others)]
    assert (change.functions, change.constants, change.modules, change.touched) == (frozenset(),) * 4


@pytest.mark.parametrize(
    ("before", "now"),
    [("vlan: int = 0", "vlan: int = 1"), ("vlan: int = 0", "vlan: int"), ("frozen=True, ", "")],
    ids=["other default", "no default", "other decorator"],
)
def test_other_change_of_a_class_is_none_of_rows(before: str, now: str):
    change = change_of_tables(before, now)
    assert (change.modules, change.rows) == ({"k8s.tables"}, frozenset())


@pytest.mark.parametrize("docstring", ["Options.", "Return whether something is known."])
def test_docstring_affects_only_what_shows_it(docstring: str):
    assert change_of_tables(docstring, "Another.") == Change()
    for head in ("import typer", "from msgspec import Struct"):
        change = change_of_tables(docstring, "Another.", head)
        assert change.touched == {"k8s.tables"}
