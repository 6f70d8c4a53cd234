"""Options of `device-plugin`, and options of its predecessors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from k8s_rdma.config.devices import (
    DEFAULT_FILE,
    HUSTCAT_RESOURCE,
    Read,
    load_device_config,
    load_mellanox_config,
    with_uid,
)
from k8s_rdma.errors import MalformedError

if TYPE_CHECKING:
    from collections.abc import Mapping


WITHOUT_FILE = [{"mode": "exact"}, {"mode": "mount"}]
"""Resources of RIT's program, which had no file, and the one that its pods should migrate to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """Options of the command.

    hustcat, mellanox: present options of a predecessor, by name.
    """

    config: str | None = None
    node: str | None = None
    pod_uid: str | None = None
    hustcat: dict[str, str]
    mellanox: dict[str, str]


def explicit_options(options: Mapping[str, str | None]) -> dict[str, str]:
    """Return the options that the command line has."""
    return {name: value for name, value in options.items() if value is not None}


def read_command_line(line: CommandLine, *, default_file: Path = Path(DEFAULT_FILE)) -> Read:
    """Read the configuration.

    MalformedError names options that do not go together, or the file and the field.

    default_file: the file that Mellanox' program reads by default.
    """
    _check(line)
    read = _read(line, default_file)
    # Not of the file alone, which the agent reads as well: the node's name may be on the command line.
    if read.config.node is None and (read.config.kubeconfig or read.config.in_cluster):
        key = "kubeconfig" if read.config.kubeconfig else "inCluster"
        purpose = "events and claims" if read.config.claims else "events"
        raise MalformedError(f"{line.config}: {key}: is for {purpose} of a node; say node, or --node")
    if line.pod_uid is None or read.config.claims is None:
        return read
    claims = with_uid(read.config.claims, line.pod_uid)
    return read._replace(config=msgspec.structs.replace(read.config, claims=claims))


def _read(line: CommandLine, default_file: Path) -> Read:
    overrides = {"node": line.node}
    if line.hustcat:
        return load_device_config(None, {**overrides, "resources": [_hustcat(line.hustcat)]})
    cdi = "--use-cdi" in line.mellanox
    path = line.mellanox.get("--config-file")
    if path is None and line.config is None and (line.mellanox or default_file.exists()):
        path = str(default_file)
    if path is not None:
        return load_mellanox_config(path, overrides, cdi=cdi)
    if line.config is None and not cdi:
        return load_device_config(None, {**overrides, "resources": WITHOUT_FILE})
    return load_device_config(line.config, overrides, cdi=cdi)


def _check(line: CommandLine) -> None:
    pairs = [(*line.hustcat, *line.mellanox)] if line.hustcat and line.mellanox else []
    if line.config is not None:
        pairs += [("--config", name) for name in (*line.hustcat, *line.mellanox) if name != "--use-cdi"]
    if pairs:
        raise MalformedError(f"command line: {' and '.join(pairs[0])} do not go together")


def _hustcat(options: dict[str, str]) -> dict[str, Any]:
    """Make the resource of that program: the VFs of one PF, or every device."""
    select: dict[str, Any] = {}
    if master := options.get("--master"):
        select = {"pfs": [master], "functions": "vf"}
    return {
        "mode": "exclusive",
        "name": options.get("--resource-name") or HUSTCAT_RESOURCE,
        "select": select,
    }
