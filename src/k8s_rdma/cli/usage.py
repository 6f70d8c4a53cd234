"""Hints for words that kubectl's users type, and help that flows at any width."""

from __future__ import annotations

import inspect
import re
import shlex
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup

from k8s_rdma.errors import visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

UsageError: Any = typer.BadParameter.__bases__[0]
"""The root of typer's errors about a command line; typer exports this one alone."""

_ASSIGNED = re.compile(r"-(?P<letter>[nol])=(?P<value>.*)", re.DOTALL)
"""Options of one letter as kubectl takes them: `-o=yaml`."""

_KUBECTLS = {
    "get": "`kubectl get rdmanodes` lists nodes, `{program} who` who holds what, `{program} top` what waits",
    "describe": "`kubectl describe rdmanode NAME` shows a node, `{program} explain pod NAME` a pod",
    "logs": "`kubectl logs` shows logs",
    "edit": "`{program} rates set NAME --min RATE --max RATE` changes rates of a running pod",
    "annotate": "`{program} rates set NAME --min RATE --max RATE` changes rates of a running pod",
}
"""Hints for kubectl's commands."""

_ONE_BY_ONE = "pods are named one by one, as NAMESPACE/NAME or with --namespace"
_WHOLE_CLUSTER = "this command is about all namespaces; --chart-namespace names that of the chart"
_WATCH = "`top` shows changes as they come"

_NAMESPACES = frozenset({"-n", "--namespace", "-A", "--all-namespaces"})
_OPTIONS = {
    "-A": _ONE_BY_ONE,
    "--all-namespaces": _ONE_BY_ONE,
    "-w": _WATCH,
    "--watch": _WATCH,
    "-l": "pods are named, and not selected by labels",
    "--selector": "pods are named, and not selected by labels",
}
"""Hints for kubectl's options, for commands without these options."""

_ONLY_KIND = "pod"


_BEFORE_COMMANDS = frozenset({"-n", "--namespace", "--context", "--cluster", "--user", "--kubeconfig"})
"""Options with a value that kubectl takes before its commands as well."""


def as_kubectl_writes(arguments: Sequence[str]) -> list[str]:
    """Split `-o=yaml` into two words, and move `-n team` before a command behind it.

    Words behind `--` stay as they are.
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)
    line: list[str] = []
    for argument in arguments[:end]:
        assigned = _ASSIGNED.fullmatch(argument)
        line += [f"-{assigned['letter']}", assigned["value"]] if assigned else [argument]
    begin = 0
    while begin < len(line):
        if line[begin] in _BEFORE_COMMANDS:
            begin += 2
        elif line[begin] == "-A" or line[begin].partition("=")[0] in _BEFORE_COMMANDS:
            begin += 1
        else:
            break
    return [*line[begin:], *line[:begin], *arguments[end:]]


class Command(TyperCommand):
    """A command whose help fits its terminal."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help."""
        _write_help(self, ctx, formatter)


def _write_help(command: Any, context: Any, formatter: Any) -> None:
    from k8s_rdma.cli.help import help_text  # rich, which processes do not load

    formatter.write(help_text(command, context))


class CommandGroup(TyperGroup):
    """A group of commands that says which of them a word may mean, and whose help fits its terminal."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help."""
        _write_help(self, ctx, formatter)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command; UsageError with a hint if it does not exist.

        For example, `explain pod/x` is `explain pod x`.
        """
        word, *arguments = args
        if word not in self.commands and _ONLY_KIND in self.commands:
            kind, slash, name = word.partition("/")
            if kind == _ONLY_KIND and slash and name:
                return super().resolve_command(ctx, [_ONLY_KIND, name, *arguments])
        if word not in self.commands and not word.startswith("-"):
            raise UsageError(self._unknown(ctx.command_path, word), ctx)
        return super().resolve_command(ctx, args)

    def _unknown(self, program: str, word: str) -> str:
        message = f"{visible(word)}: {program} has no such command"
        hint = _KUBECTLS.get(word, "").format(program=program)
        if hint:
            return f"{message}: {hint}"
        if near := get_close_matches(word, self.commands):
            return f"{message}; did you mean {' or '.join(f'`{program} {name}`' for name in near)}?"
        if _ONLY_KIND in self.commands:
            return f"{message}; did you mean `{program} {_ONLY_KIND} {shlex.quote(visible(word))}`?"
        return f"{message}; it has {', '.join(self._shown())}"

    def _shown(self) -> Iterable[str]:
        return (name for name, command in self.commands.items() if not command.hidden)


def usage_text(error: Any) -> str:
    """Return the lines for an error about a command line: the fault, and the command of its help."""
    path = error.ctx.command_path if error.ctx else ""
    if not error.message:  # no arguments: help
        return f"{error.ctx.get_help()}\n"
    message = visible(error.format_message()).rstrip(".")
    hint = _option_hint(getattr(error, "option_name", ""), error.ctx)
    advice = "".join(
        f"  {line}\n" for line in (hint, f"`{path} --help` lists what it takes" if path else "") if line
    )
    return f"k8s-rdma: {message}\n{advice}"


def _option_hint(option: str, context: Any) -> str:
    """Return the hint for an option that a command does not have; empty if there is no hint."""
    options = {word for parameter in context.command.params for word in parameter.opts} if context else set()
    if option in _NAMESPACES and "--chart-namespace" in options and "--namespace" not in options:
        return _WHOLE_CLUSTER
    return _OPTIONS.get(option, "")


def flow_help(app: Any) -> None:
    """Make each paragraph of help one line, which the terminal's width wraps, for all commands of an app."""
    for command in app.registered_commands:
        if command.cls in {None, TyperCommand}:
            command.cls = Command
    for command in (*app.registered_commands, *app.registered_groups):
        text = (
            command.help if isinstance(command.help, str) else command.callback and command.callback.__doc__
        )
        if text:
            command.help = _flowed(text)
    for group in app.registered_groups:
        flow_help(group.typer_instance)


def _flowed(text: str) -> str:
    return "\n\n".join(" ".join(part.split()) for part in inspect.cleandoc(text).split("\n\n"))
