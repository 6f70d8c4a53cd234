"""The pages that are made of the code, and their places in the site."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from docs_site.reference import configuration
from docs_site.reference.commands import commands_page
from docs_site.reference.configuration import configuration_page
from docs_site.reference.errors import errors_page
from docs_site.reference.metrics import metrics_page
from docs_site.reference.objects import objects_page
from docs_site.reference.rest import rest_page

SECTION = "Reference"
"""The section of the navigation that they are in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedPage:
    """path: as if it were a file of the repository. text: makes the page, in Markdown, of the root."""

    title: str
    path: str
    text: Callable[[Path], str]


PAGES = (
    GeneratedPage(title="Commands", path="docs/reference/commands.md", text=lambda _: commands_page()),
    GeneratedPage(title="Configuration, all keys", path=configuration.PATH, text=configuration_page),
    GeneratedPage(title="REST of a node", path="docs/reference/rest.md", text=lambda _: rest_page()),
    GeneratedPage(title="Metrics", path="docs/reference/metrics.md", text=lambda _: metrics_page()),
    GeneratedPage(title="Objects in the API server", path="docs/reference/objects.md", text=objects_page),
    GeneratedPage(
        title="Reasons and error codes", path="docs/reference/errors.md", text=lambda _: errors_page()
    ),
)
