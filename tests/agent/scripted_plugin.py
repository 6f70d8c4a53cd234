"""A plugin for tests: a shell script that notes each call and gives set answers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from k8s_rdma.core.ledger import DelegatedPlugin

if TYPE_CHECKING:
    from pathlib import Path

MODERN = ("0.4.0", "1.0.0", "1.1.0")
ERROR = """echo '{"cniVersion":"1.0.0","code":7,"msg":"no","details":"more"}'; echo on stderr >&2; exit 1"""

_SCRIPT = """#!/bin/sh
stdin=$(cat)
file=$(mktemp {directory}/calls/XXXXXXXXXX.new)
{{
  for name in COMMAND CONTAINERID NETNS IFNAME ARGS PATH; do eval "echo \\"\\$CNI_$name\\""; done
  pwd
  printf '%s' "$stdin"
}} >"$file"
number=$(mkdir -p {directory}/order && ls {directory}/order | wc -l)
while ! mkdir {directory}/order/$number 2>/dev/null; do number=$((number + 1)); done
mv "$file" {directory}/order/$number/call
case $CNI_COMMAND in
VERSION) {version} ;;
{answers}
esac
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """The arguments of a call of the plugin."""

    command: str
    container: str
    netns: str
    ifname: str
    args: str
    path: str
    directory: str
    stdin: dict[str, Any]


class ScriptedPlugin:
    """In `directory`, under `name`; `answers` are shell commands by CNI command."""

    def __init__(self, directory: Path, name: str = "scripted", versions: tuple[str, ...] = MODERN) -> None:
        self.name = name
        self.directory = directory / f"{name}.d"
        self.file = directory / name
        (self.directory / "calls").mkdir(parents=True)
        (self.directory / "order").mkdir()
        self.speak(versions)

    def speak(self, versions: tuple[str, ...], **answers: str) -> None:
        told = json.dumps({"cniVersion": "1.0.0", "supportedVersions": versions})
        self.write(f"echo '{told}'", **answers)

    def write(self, version: str, **answers: str) -> None:
        cases = "\n".join(f"{command}) {answer} ;;" for command, answer in answers.items())
        new = self.file.with_suffix(".new")
        new.write_text(_SCRIPT.format(directory=self.directory, version=version, answers=cases))
        new.chmod(0o755)
        new.replace(self.file)

    def plugin(self, **netconf: object) -> DelegatedPlugin:
        return DelegatedPlugin(
            plugin=self.name,
            netconf=json.dumps({"name": "net"} | netconf).encode(),
            cni_path=f"/nowhere:{self.file.parent}",
            cni_args="IgnoreUnknown=1;K8S_POD_NAME=p",
        )

    def calls(self, *commands: str) -> list[Call]:
        """Those of these commands, or all; in the order in which they began."""
        found = []
        for path in sorted((self.directory / "order").glob("*/call"), key=lambda path: int(path.parent.name)):
            *variables, stdin = path.read_text().split("\n", 7)
            names = ("command", "container", "netns", "ifname", "args", "path", "directory")
            found.append(Call(**dict(zip(names, variables, strict=True)), stdin=json.loads(stdin or "{}")))
        return [call for call in found if not commands or call.command in commands]


def addresses(*ips: str, **more: object) -> str:
    """The shell command that prints an IPAM result of 1.0.0."""
    result = {"cniVersion": "1.0.0", "ips": [{"address": ip} for ip in ips]} | more
    return f"echo '{json.dumps(result)}'"
