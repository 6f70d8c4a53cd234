"""JSON schemas of configuration files."""

from __future__ import annotations

import msgspec


def config_schema(kind: type[msgspec.Struct]) -> str:
    """A file's JSON schema (draft 2020-12), for editors and for those who generate the file."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(kind)}
    return msgspec.json.format(msgspec.json.encode(schema, order="sorted"), indent=2).decode()
