"""Tables of pages in docs/ that are made from the code: `make tables` writes them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docs_site.reference.configuration import meaning, settings
from docs_site.reference.rest import TOKENS_DEMANDED, operation_of
from docs_site.reference.tables import code, rows_by_name, section, table
from k8s_rdma.extender.config import ExtenderConfig
from k8s_rdma.server.app import openapi_document

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]


def settings_table(page: str) -> str:
    """The extender's keys and defaults from its model; the page's own table has what they mean."""
    meanings = {name: cells[-1] for name, cells in rows_by_name(section(page, "Configuration"))}
    rows = [
        [code(each.key), _default(each.default), meaning(meanings, each.key)]
        for each in settings(ExtenderConfig)
    ]
    return table(("key", "default", "meaning"), rows)


def _default(text: str) -> str:
    return "required" if text == "needed" else code(text.strip("`"))


def paths_table(_page: str) -> str:
    """The node server's paths from its OpenAPI document."""
    paths = openapi_document(TOKENS_DEMANDED)["paths"]
    rows = [_row(path, *operation_of(item)) for path, item in paths.items()]
    return table(("path", "answer", "status"), rows)


def _row(path: str, method: str, operation: dict[str, Any]) -> list[str]:
    shown = code(path if method == "GET" else f"{method} {path}")
    return [shown, operation["summary"], _statuses(operation)]


def _statuses(operation: dict[str, Any]) -> str:
    return ", ".join(code(status) for status in sorted(operation["responses"]) if status.isdigit())


TABLES: dict[str, tuple[str, Callable[[str], str]]] = {
    "settings": ("docs/extender-configuration.md", settings_table),
    "paths": ("docs/http-api.md", paths_table),
}
"""By the name in the marks around a table: its page, and the table of the page as it is."""


def with_table(page: str, name: str, made: str) -> str:
    """The page with another table between the marks of that name."""
    begin, end = f"<!-- made: {name} -->\n", f"<!-- /made: {name} -->\n"
    return re.sub(f"{begin}.*{end}", lambda _: f"{begin}\n{made}\n{end}", page, flags=re.DOTALL)


def written(name: str) -> tuple[Path, str]:
    """The path of a table's page, and its text with the table of now."""
    path, make = TABLES[name]
    page = (ROOT / path).read_text()
    return ROOT / path, with_table(page, name, make(page))


if __name__ == "__main__":
    for each in TABLES:
        path, text = written(each)
        path.write_text(text)
