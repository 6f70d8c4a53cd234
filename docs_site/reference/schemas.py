"""Tables of JSON schemas."""

from __future__ import annotations

from typing import Any

from docs_site.reference.tables import code, table


def properties_table(schema: dict[str, Any]) -> str:
    """An object's properties; those of objects in it are named by their path, `pfs[].name`."""
    return table(("property", "type", "meaning"), _rows(schema, ""))


def _rows(schema: dict[str, Any], prefix: str) -> list[list[str]]:
    rows = []
    for name, each in schema.get("properties", {}).items():
        rows.append([code(prefix + name), type_of(each), each.get("description", "")])
        inner = each.get("items", each) if each.get("type") == "array" else each
        rows += _rows(inner, f"{prefix}{name}{'[]' if inner is not each else ''}.")
    return rows


def type_of(schema: dict[str, Any]) -> str:
    """In words; a schema that has a name by its name."""
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(map(type_of, schema["anyOf"])))
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "enum" in schema:
        return ", ".join(code(str(each)) for each in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {type_of(schema.get('items', {}))}"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"object of {type_of(schema['additionalProperties'])} by name"
    return str(schema.get("type", "any"))
