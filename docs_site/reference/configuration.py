"""The page of configuration: keys, types and defaults of the models, meanings of the pages by hand."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from docs_site.reference.tables import code, moved, rows_by_name, section, table
from k8s_rdma.config.processes import CONFIGURATIONS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATH = "docs/reference/configuration.md"

HEAD = """# Configuration

Keys, types and defaults are made of the code; what they mean is from the process's own page, which says
more. Files are YAML, unknown keys are refused by name. `[]` is each of a list.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """command: after `k8s-rdma`. The tuple: pages and headings that describe its keys, the best first."""

    command: str
    model: type[msgspec.Struct]
    told: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """key: with those of the objects that it is in."""

    key: str
    type: str
    default: str


HERE = "Configuration"
_INIT = ("docs/init.md", HERE)
_PAGES: dict[str, tuple[tuple[str, str], ...]] = {
    "init": (_INIT,),
    "agent": (("docs/agent.md", HERE), _INIT),
    "server": (("docs/server.md", HERE), _INIT),
    "device-plugin": (("docs/device-plugin-reference.md", HERE),),
    "extender": (("docs/extender-configuration.md", HERE),),
    "webhook": (("docs/injection.md", HERE),),
    "web": (("docs/web.md", HERE),),
}
PROCESSES = tuple(
    Process(command=command, model=model, told=_PAGES[command]) for command, model in CONFIGURATIONS.items()
)


def configuration_page(root: Path) -> str:
    """Return every key of every process's file; raise KeyError with a key that no page describes."""
    return "\n".join([HEAD, *(_section(root, process) for process in PROCESSES)])


def settings(model: type[msgspec.Struct]) -> Iterator[Setting]:
    """Yield the keys of a file, those of objects in it after the object's own."""
    schema = msgspec.json.schema(model)
    yield from _settings(_resolved(schema, schema["$defs"]), schema["$defs"], "")


def _section(root: Path, process: Process) -> str:
    told: dict[str, str] = {}
    for page, heading in process.told:
        for name, cells in rows_by_name(section((root / page).read_text(), heading)):
            told.setdefault(name, moved(cells[-1], source=page, to=PATH))
    first = moved(f"[its page]({process.told[0][0]})", source="", to=PATH)
    rows = [
        [code(each.key), each.type, each.default, meaning(told, each.key)] for each in settings(process.model)
    ]
    head = f"## k8s-rdma {process.command}\n\n`k8s-rdma {process.command} --config FILE`, see {first}.\n\n"
    return head + table(("key", "type", "default", "meaning"), rows)


def meaning(told: dict[str, str], key: str) -> str:
    """Return the meaning of the key as it is, or without the objects that it is in, or that of the object."""
    names = [key, *(key[at + 1 :] for at, letter in enumerate(key) if letter == ".")]
    for name in names:
        if name in told:
            return told[name]
    parent = key.rpartition(".")[0].removesuffix("[]")
    if not parent:
        msg = f"{key}: no table of its page says what it means; add a row"
        raise KeyError(msg)
    return f"see `{parent}`" if meaning(told, parent) else ""


def _settings(model: dict[str, Any], defs: dict[str, Any], prefix: str) -> Iterator[Setting]:
    needed = model.get("required", ())
    for key, schema in model["properties"].items():
        default = "needed" if key in needed else schema.get("said", _default(schema.get("default")))
        yield Setting(key=prefix + key, type=_type(schema, defs), default=default)
        below, many = _below(schema, defs)
        if below:
            yield from _settings(below, defs, f"{prefix}{key}{'[]' * many}.")


def _below(schema: dict[str, Any], defs: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return the object of a value, empty for other values, and whether a list has it."""
    many = schema.get("type") == "array"
    kinds = [_resolved(each, defs) for each in _alternatives(schema["items"] if many else schema)]
    objects = [each for each in kinds if "properties" in each]
    return (objects[0] if len(objects) == 1 else _merged(objects)), many


def _merged(modes: list[dict[str, Any]]) -> dict[str, Any]:
    """Return objects with a different `mode` as one that has the keys of all; empty without objects."""
    merged: dict[str, Any] = {}
    for mode in reversed(modes):
        merged |= {key: {**each, "said": "by mode"} for key, each in mode["properties"].items()}
    tags = [mode["properties"]["mode"]["enum"][0] for mode in modes]
    return {"properties": merged | {"mode": {"enum": tags, "said": ""}}} if modes else {}


def _alternatives(schema: dict[str, Any]) -> list[dict[str, Any]]:
    return list(schema.get("anyOf", [schema]))


def _resolved(schema: dict[str, Any], defs: dict[str, Any]) -> dict[str, Any]:
    return dict(defs[schema["$ref"].rpartition("/")[2]]) if "$ref" in schema else schema


def _type(schema: dict[str, Any], defs: dict[str, Any]) -> str:
    """Return the type in words; an object's keys are rows of their own."""
    kinds = [_one_type(_resolved(each, defs), defs) for each in _alternatives(schema)]
    return " or ".join(dict.fromkeys(kind for kind in kinds if kind != "null"))


def _one_type(schema: dict[str, Any], defs: dict[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(code(str(each)) for each in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'], defs)}"
    return _WORDS.get(str(schema.get("type")), str(schema.get("type"))) + _range(schema)


_WORDS = {"integer": "whole number", "boolean": "`true`, `false`", "string": "text"}
"""Names of types that differ from JSON schema's."""


def _range(schema: dict[str, Any]) -> str:
    low, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    ends = [
        f" from {low:g}" if low is not None else "",
        f" above {above:g}" if above is not None else "",
        f" to {schema['maximum']:,}" if "maximum" in schema else "",
    ]
    return "".join(ends)


def _default(default: object) -> str:
    if default is None or default in ([], (), {}):
        return "none"
    if isinstance(default, dict) or (isinstance(default, list | tuple) and isinstance(default[0], dict)):
        return "see below"
    shown = f"{default:g}" if isinstance(default, float) else json.dumps(default)
    return code(shown if default == "" else shown.strip('"'))
