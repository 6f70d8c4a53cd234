"""The page of the objects in the API server, from their CustomResourceDefinitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

from docs_site.reference.schemas import properties_table
from docs_site.reference.tables import code, table

if TYPE_CHECKING:
    from pathlib import Path

HEAD = """# Objects in the API server

Made of `deploy/crds`. Who writes them and when:
[what the agent publishes](../agent.md#published-objects).
"""


def objects_page(root: Path) -> str:
    """Return every definition in every version."""
    files = sorted((root / "deploy" / "crds").glob("*.yaml"))
    definitions = [each["spec"] for path in files for each in yaml.safe_load_all(path.read_text())]
    return "\n".join(
        [HEAD, *(_section(spec, version) for spec in definitions for version in spec["versions"])]
    )


def _section(spec: dict[str, Any], version: dict[str, Any]) -> str:
    columns = [[each["name"], code(each["jsonPath"])] for each in version.get("additionalPrinterColumns", ())]
    schema = version["schema"]["openAPIV3Schema"]
    names = spec["names"]
    group, shown = f"`{spec['group']}/{version['name']}`", f"`kubectl get {names['plural']}`"
    parts = [
        f"## {names['kind']}, {version['name']}",
        f"{group}, {shown}; {spec['scope'].lower()}-scoped. {schema.get('description', '')}",
        properties_table(schema),
        "Columns of `kubectl get`:",
        table(("column", "is"), columns),
    ]
    return "\n\n".join(parts)
