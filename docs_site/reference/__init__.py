"""Pages that are made of the code when the site is built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

SECTION = "Reference"
"""The section of the navigation that they are in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedPage:
    """path: as if it were a file of the repository. text: makes the page, in Markdown."""

    title: str
    path: str
    text: Callable[[], str]


PAGES: tuple[GeneratedPage, ...] = ()
