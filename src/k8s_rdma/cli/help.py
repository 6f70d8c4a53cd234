"""Help of commands, by the tables and paragraphs of their answers, so that no word is folded."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from rich.text import Text

from k8s_rdma.cli.console import Page
from k8s_rdma.cli.tables import Column, Table

if TYPE_CHECKING:
    from collections.abc import Iterator

_Row = tuple[str, str, str]
"""The panel, the names, and their description."""


def help_text(command: Any, context: Any) -> str:
    """Return the help of a command of typer's, for the width of the terminal."""
    page = Page(markup=False)
    with page.capture() as captured:
        page.print(f"Usage: {' '.join([context.command_path, *command.collect_usage_pieces(context)])}")
        for paragraph in filter(None, (command.help or "").split("\n\n")):
            page.print(f"\n{paragraph}")
        panels: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for panel, names, description in (*_commands(command, context), *_parameters(command, context)):
            panels[panel].append((names, description))
        for panel, rows in panels.items():
            page.print(Text(f"\n{panel}:", style="bold"))
            shown = Table(Column("NAMES"), Column("DESCRIPTION", prose=True), headings=False)
            for names, description in rows:
                shown.add(f"  {names}", description)
            page.print(shown)
    return captured.get()


def _commands(command: Any, context: Any) -> Iterator[_Row]:
    """Yield a group's commands, each with the first paragraph of its help."""
    for name in command.list_commands(context) if hasattr(command, "list_commands") else ():
        found = command.get_command(context, name)
        if not found.hidden:
            yield found.rich_help_panel or "Commands", name, (found.help or "").partition("\n\n")[0]


def _parameters(command: Any, context: Any) -> Iterator[_Row]:
    """Yield arguments, then options."""
    rows = [
        (getattr(parameter, "rich_help_panel", None), parameter.param_type_name, record)
        for parameter in command.get_params(context)
        if (record := parameter.get_help_record(context))
    ]
    for kind, title in (("argument", "Arguments"), ("option", "Options")):
        for panel, found, (names, description) in rows:
            if found == kind:
                yield panel or title, names, " ".join(description.split())
