"""Command lines of programs that are written in Go, for the command that replaces these.

Source: Go's package `flag`: one dash or two, `-name=value`, and booleans whose value can only follow `=`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from k8s_rdma.cli.usage import Command

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_VALUES = frozenset({"master", "resource-name", "config-file", "log-level"})
_BOOLEANS = frozenset({"use-cdi", "version"})
_LOGGING_VALUES = frozenset(
    {"stderrthreshold", "vmodule", "log_backtrace_at", "log_dir", "log_file", "log_file_max_size"}
)

_LOGGING_BOOLEANS = frozenset(
    {"logtostderr", "alsologtostderr", "skip_headers", "skip_log_headers", "add_dir_header", "one_output"}
)
"""Options of glog and klog, with which hustcat's plugin logged; they have no effect here."""
_FLAG = re.compile(r"--?(?P<name>[A-Za-z][\w-]*)(=(?P<value>.*))?", re.DOTALL)
_TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE = frozenset({"0", "f", "F", "false", "FALSE", "False"})


def with_two_dashes(arguments: Sequence[str]) -> list[str]:
    """Translate options to `--name value`, `--name=value` and `--name`; unknown options stay as they are.

    `-v` with a number is a level of logging, and without one prints the version, because one predecessor had
    the former and another the latter.
    """
    return list(_rewritten(list(arguments)))


def _rewritten(remaining: list[str]) -> Iterator[str]:
    while remaining:
        argument = remaining.pop(0)
        if argument == "--":
            yield from (argument, *remaining)
            return
        flag = _FLAG.fullmatch(argument)
        if flag is None:
            yield argument
        else:
            yield from _rewrite_flag(argument, flag["name"], flag["value"], remaining)


def _rewrite_flag(argument: str, name: str, value: str | None, remaining: list[str]) -> Iterator[str]:
    if name == "v":
        yield from _verbosity(argument, value, remaining)
    elif name in _LOGGING_VALUES:
        if value is None and remaining:
            remaining.pop(0)
    elif name in _BOOLEANS and (value is None or value in _TRUE):
        yield f"--{name}"
    elif name in _VALUES:
        yield f"--{name}" if value is None else f"--{name}={value}"
        if value is None and remaining:
            yield remaining.pop(0)
    elif not (name in _LOGGING_BOOLEANS or (name in _BOOLEANS and value in _FALSE)):
        yield argument


def _verbosity(argument: str, value: str | None, remaining: list[str]) -> Iterator[str]:
    if value is None and remaining and remaining[0].isdecimal():
        value = remaining.pop(0)
    if value is None or value in _TRUE - {"1"}:
        yield "--version"
    elif value.isdecimal():
        yield f"--verbosity={value}"
    elif value not in _FALSE:
        yield argument


class GoCommand(Command):
    """Takes options with one dash as well."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Rewrite options with one dash, then parse as usual."""
        return super().parse_args(ctx, with_two_dashes(args))
