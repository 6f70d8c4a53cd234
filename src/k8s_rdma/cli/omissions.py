"""Lists that are shown in part: their first entries, and the number of the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from k8s_rdma.cli.console import Page

MOST_ROWS = 20
"""Rows of a table for people; documents have all."""
_MOST_NOTES = 5
_MOST_TEXTS = 3


def first_notes(notes: Sequence[str]) -> tuple[str, ...]:
    """Return the first notes, and a last one that counts the others."""
    omitted = [f"and {len(notes) - _MOST_NOTES} more"] if len(notes) > _MOST_NOTES else []
    return (*notes[:_MOST_NOTES], *omitted)


def listed(texts: Sequence[str]) -> str:
    """Join the first texts, and say how many more there are."""
    omitted = f" and {len(texts) - _MOST_TEXTS} more" if len(texts) > _MOST_TEXTS else ""
    return f"{', '.join(texts[:_MOST_TEXTS])}{omitted}"


def print_omitted(rows: int, page: Page) -> None:
    """Print how many rows are not among the first `MOST_ROWS`, if there are more."""
    if rows > MOST_ROWS:
        page.print(f"and {rows - MOST_ROWS} more; --output json has them all")
