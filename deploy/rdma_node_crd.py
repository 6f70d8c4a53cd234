"""The CustomResourceDefinition of `RdmaNode`, made of the types that are read and written.

The schema is structural (Kubernetes' documentation, "Specifying a structural schema"): no references, one
type each, `nullable` instead of a type `null`. It demands what decoding demands and no more, so that what an
agent can write is never refused.
"""

from __future__ import annotations

from inspect import cleandoc
from pathlib import Path
from typing import Any, cast

import msgspec
import yaml

from k8s_rdma.wire.rdma_node import GROUP, KIND, PLURAL, VERSION, RdmaNodeStatus
from k8s_rdma.wire.report import UNIQUE

MANIFEST = Path(__file__).parent / "crds" / "rdmanodes.yaml"
_SCHEMA_KEYS = ("type", "description", "enum", "minimum", "maximum", "maxLength", "maxItems")

_COLUMNS = (
    ("Node", "string", ".metadata.ownerReferences[0].name"),
    ("PFs", "integer", ".status.summary.pfs"),
    ("VFs free/total", "string", ".status.summary.vfs"),
    ("Bandwidth free/total", "string", ".status.summary.bandwidth"),
    ("Devices free/total", "string", ".status.summary.devices"),
    ("Claims free/total", "string", ".status.summary.claims"),
    ("Age", "date", ".metadata.creationTimestamp"),
    ("Last report", "date", '.status.conditions[?(@.type=="Ready")].lastHeartbeatTime'),
    ("Ready then", "string", '.status.conditions[?(@.type=="Ready")].status'),
)
"""As kubectl prints them, behind the object's name, which is always printed: that of the node it is made for.
Node is the Node object that it goes with, so that one that would be left behind shows none. It repeats a name
otherwise, and so is printed for `-o wide` alone.
A dead agent cannot write that it is not ready any more: its condition is shown as that of its last report,
whose age grows."""

_WIDE = frozenset({"Node", "Devices free/total", "Claims free/total"})
"""Those that are printed for `-o wide` alone; few nodes have exclusive resources, or PFs for claims."""


def write_manifest() -> None:
    """Write the manifest's file."""
    definition = msgspec.to_builtins(custom_resource_definition())
    MANIFEST.write_text(yaml.safe_dump(definition, sort_keys=False, width=110, allow_unicode=True))


def custom_resource_definition() -> dict[str, Any]:
    """The manifest."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Cluster",
            "names": {"plural": PLURAL, "singular": KIND.lower(), "kind": KIND, "listKind": f"{KIND}List"},
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [
                        {
                            "name": name,
                            "type": kind,
                            "jsonPath": path,
                            **({"priority": 1} if name in _WIDE else {}),
                        }
                        for name, kind, path in _COLUMNS
                    ],
                    "schema": {"openAPIV3Schema": _schema()},
                }
            ],
        },
    }


def _schema() -> dict[str, Any]:
    (status,), types = msgspec.json.schema_components([RdmaNodeStatus], ref_template="{name}")
    return {
        "type": "object",
        "description": "A node's RDMA hardware and who holds it, as its agent tells it.",
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": {"type": "object", "description": "Nothing is to be asked of a node here."},
            "status": _structural(status, types),
        },
    }


def _structural(schema: dict[str, Any], types: dict[str, Any]) -> dict[str, Any]:
    """The same, of the words that a structural schema has."""
    if "$ref" in schema:
        return _structural(types[schema["$ref"]], types)
    if "anyOf" in schema:
        (other,) = (each for each in schema["anyOf"] if each != {"type": "null"})
        return {**_structural(other, types), "nullable": True}
    made = {word: schema[word] for word in _SCHEMA_KEYS if word in schema}
    if "description" in made:  # a docstring, of which Python 3.13 and later keep no indentation
        made["description"] = cleandoc(made["description"])
    if "pattern" in schema:  # RE2 has no `\Z`, and its `$` is the end of the text (Python's may be before it)
        made["pattern"] = schema["pattern"].replace(r"\Z", "$")
    if "enum" in schema:
        made["type"] = "string"
    if isinstance(schema.get("items"), dict):
        made["items"] = _structural(schema["items"], types)
    if "properties" in schema:
        properties = cast("dict[str, Any]", schema["properties"])
        made["properties"] = {
            name: _keyed(name, _structural(each, types)) for name, each in properties.items()
        }
        if schema.get("required"):
            made["required"] = schema["required"]
        for name in {"lastTransitionTime", "lastHeartbeatTime"} & properties.keys():
            made["properties"][name]["format"] = "date-time"
    return made


def _keyed(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """The field's schema; that of a list whose items differ in some fields has the API server see to it."""
    if name not in UNIQUE or schema["type"] != "array":
        return schema
    return {**schema, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(UNIQUE[name])}
