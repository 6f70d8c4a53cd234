"""A strict reader of the Prometheus text format, version 0.0.4.

Stricter than the format: every sample belongs to a family with HELP and TYPE before it, families do not
come twice or mixed, no set of labels comes twice, and counters have names that say so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
SAMPLE = re.compile(rf"({NAME})(?:\{{(.*)\}})? (\S+)")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(?:,|$)')
SUFFIXES = {"summary": ("_sum", "_count"), "histogram": ("_bucket", "_sum", "_count")}
ESCAPES = {r"\\": "\\", r"\"": '"', r"\n": "\n"}

Labels = frozenset[tuple[str, str]]


@dataclass
class Family:
    kind: str
    samples: dict[tuple[str, Labels], float] = field(default_factory=dict)


def read(exposition: str) -> dict[str, Family]:
    """Return the families by name. Raise AssertionError if a line does not fit."""
    assert exposition.endswith("\n")
    families: dict[str, Family] = {}
    explained = current = ""
    for line in exposition[:-1].split("\n"):
        if line.startswith("# HELP "):
            explained = _explained(line)
        elif line.startswith("# TYPE "):
            _, _, current, kind = line.split(" ")
            assert current == explained, line
            assert current not in families, line
            assert (kind == "counter") == current.endswith("_total"), line
            families[current] = Family(kind)
        else:
            _add(families[current], current, line)
    for name, family in families.items():
        if family.kind == "histogram":
            _check_buckets(name, family)
    return families


def value(families: dict[str, Family], name: str, **labels: str) -> float:
    """Of the one sample of that name with exactly these labels."""
    family = families.get(name) or families[re.sub("_(sum|count|bucket)$", "", name)]
    return family.samples[name, frozenset(labels.items())]


def _explained(line: str) -> str:
    _, _, name, text = line.split(" ", 3)
    assert re.fullmatch(NAME, name), line
    assert text, line
    return name


def _add(family: Family, name: str, line: str) -> None:
    found = SAMPLE.fullmatch(line)
    assert found, line
    sample, inside, number = found.groups()
    assert sample in {name + suffix for suffix in SUFFIXES.get(family.kind, ("",))}, line
    key = (sample, _labels(inside or "", line))
    assert (sample.endswith("_bucket") and family.kind == "histogram") == ("le" in dict(key[1])), line
    assert key not in family.samples, line
    family.samples[key] = float(number)


def _check_buckets(name: str, family: Family) -> None:
    """Each series grows to a bucket of all, which is the count."""
    for (sample, labels), count in family.samples.items():
        if sample == f"{name}_count":
            series = {
                float(dict(with_le)["le"]): number
                for (other, with_le), number in family.samples.items()
                if other == f"{name}_bucket" and {p for p in with_le if p[0] != "le"} == labels
            }
            ascending = [series[bound] for bound in sorted(series)]
            assert ascending == sorted(ascending), name
            assert series[float("inf")] == count, name
            assert (f"{name}_sum", labels) in family.samples, name


def _labels(inside: str, line: str) -> Labels:
    found = list(LABEL.finditer(inside))
    assert "".join(match[0] for match in found) == inside, line
    names = [match[1] for match in found]
    assert len(set(names)) == len(names), line
    return frozenset((m[1], re.sub(r"\\.", lambda e: ESCAPES[e[0]], m[2])) for m in found)
