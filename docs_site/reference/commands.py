"""The page of commands: the command line's own help of all of them."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import typer

from docs_site.reference.tables import code, table
from k8s_rdma.cli.main import app

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAD = """# Commands

Made of the code; `k8s-rdma COMMAND --help` prints the same. The exit status is 0, or 1 with a line on
standard error.
"""


def commands_page() -> str:
    """Return every command with its arguments and options."""
    return "\n".join([HEAD, *(_section(name, command) for name, command in commands())])


def commands() -> Iterator[tuple[str, Any]]:
    """Yield names, as they are typed, and commands; groups and hidden commands are left out."""
    yield from _commands("k8s-rdma", typer.main.get_command(app))


def _commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    below = getattr(command, "commands", {})
    if not below or command.invoke_without_command:
        yield name, command
    for word, each in below.items():
        if not each.hidden:
            yield from _commands(f"{name} {word}", each)


def _section(name: str, command: Any) -> str:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option" and not each.hidden]
    usage = " ".join([name, *(["[OPTIONS]"] * bool(options)), *map(_usage, arguments)])
    parts = [f"## {name}", inspect.cleandoc(command.help or ""), f"```text\n{usage}\n```"]
    if arguments:
        rows = [[code(_name(each)), _default(each), each.help or ""] for each in arguments]
        parts.append(table(("argument", "default", "meaning"), rows))
    if options:
        parts.append(table(("option", "default", "meaning"), map(_option, options)))
    return "\n\n".join(parts)


def _usage(argument: Any) -> str:
    return _name(argument) if argument.required else f"[{_name(argument)}]"


def _name(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def _option(option: Any) -> tuple[str, str, str]:
    value = "" if option.is_flag else f" {option.metavar or _values(option)}"
    names = ", ".join(code(name + value) for name in (*option.opts, *option.secondary_opts))
    panel = getattr(option, "rich_help_panel", None)
    return names, _default(option), " ".join(filter(None, [option.help or "", f"({panel})" if panel else ""]))


def _values(option: Any) -> str:
    if choices := getattr(option.type, "choices", ()):
        return "|".join(str(getattr(each, "value", each)) for each in choices)
    return {"str": "TEXT", "integer": "N", "float": "N"}.get(option.type.name, "VALUE")


def _default(parameter: Any) -> str:
    default = parameter.default
    if default is None or default is False:
        return ""
    return code(str(getattr(default, "value", default)))
