"""The CNI_* variables a plugin is called with.

Source: CNI specification 1.1.0, section 2 "Parameters" and "CNI operations"; which of them a command needs
is as in libcni's `pkg/skel`, the rules for their text as in its `pkg/utils`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NoReturn, get_args

from k8s_rdma.core.ids import ContainerId, PodUid
from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.wire.json import shown

Command = Literal["ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION"]
COMMANDS: tuple[Command, ...] = get_args(Command)

MAX_IFNAME_BYTES = 15
"""`IFNAMSIZ` - 1 (include/uapi/linux/if.h)."""

_CONTAINER_ID = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.\-]*")

_REQUIRED: Mapping[Command, tuple[str, ...]] = {
    "ADD": ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"),
    "CHECK": ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"),
    "DEL": ("CNI_CONTAINERID", "CNI_IFNAME", "CNI_PATH"),
    "GC": ("CNI_PATH",),
    "STATUS": ("CNI_PATH",),
    "VERSION": (),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CniEnvironment:
    """The environment of a plugin call.

    container_id, ifname: empty for GC, STATUS and VERSION, which concern no container.
    netns: the namespace's path; None when the runtime gave none (DEL after it vanished).
    args: `CNI_ARGS` as pairs; raw_args: the same as given, for plugins called in turn.
    path: `CNI_PATH`, directories with `:` between.
    """

    command: Command
    container_id: ContainerId
    ifname: str
    netns: str | None
    args: Mapping[str, str]
    raw_args: str
    path: str

    @property
    def pod_namespace(self) -> str | None:
        """The pod's namespace, if the runtime is a Kubernetes one."""
        return self.args.get("K8S_POD_NAMESPACE") or None

    @property
    def pod_name(self) -> str | None:
        """The pod's name, if the runtime is a Kubernetes one."""
        return self.args.get("K8S_POD_NAME") or None

    @property
    def pod_uid(self) -> PodUid | None:
        """The pod's UID, if the runtime is a Kubernetes one and new enough to tell."""
        uid = self.args.get("K8S_POD_UID")
        return PodUid(uid) if uid else None


def parse_environment(variables: Mapping[str, str]) -> CniEnvironment:
    """The call that the variables make; others than CNI's are not looked at.

    MalformedError (`INVALID_ENVIRONMENT`) names the variable and what is wrong with it.
    """
    command = _command(variables.get("CNI_COMMAND", ""))
    for name in _REQUIRED[command]:
        if not variables.get(name):
            _refuse(name, f"not set, and {command} needs it")
    concerns_container = "CNI_CONTAINERID" in _REQUIRED[command]
    raw_args = variables.get("CNI_ARGS", "")
    return CniEnvironment(
        command=command,
        container_id=_container_id(variables["CNI_CONTAINERID"] if concerns_container else ""),
        ifname=_ifname(variables["CNI_IFNAME"] if concerns_container else ""),
        netns=(variables.get("CNI_NETNS") or None) if concerns_container else None,
        args=_args(raw_args),
        raw_args=raw_args,
        path=variables.get("CNI_PATH", ""),
    )


def ifname_fault(name: str) -> str | None:
    """Describe why this is no name of a network interface; None when it is one.

    Source: `dev_valid_name` in net/core/dev.c, 6.1, and the specification's rule for `CNI_IFNAME`.
    """
    if not name:
        return "is empty"
    if len(name.encode(errors="replace")) > MAX_IFNAME_BYTES:
        return f"is longer than {MAX_IFNAME_BYTES} bytes"
    if name in (".", "..") or any(char in "/:\0" or char.isspace() for char in name):
        return "must not be . or .. nor contain / or : or white space"
    return None


def _command(text: str) -> Command:
    if text not in COMMANDS:
        _refuse("CNI_COMMAND", f"{shown(text)} is none of {', '.join(COMMANDS)}")
    return text


def _container_id(text: str) -> ContainerId:
    if text and not _CONTAINER_ID.fullmatch(text):
        _refuse(
            "CNI_CONTAINERID",
            f"{shown(text)} must be letters, digits, _ . - and start with one of the former",
        )
    return ContainerId(text)


def _ifname(text: str) -> str:
    if text and (fault := ifname_fault(text)):
        _refuse("CNI_IFNAME", f"{shown(text)} {fault}")
    return text


def _args(text: str) -> Mapping[str, str]:
    pairs = {}
    for pair in text.split(";") if text else ():
        key, equals, value = pair.partition("=")
        if not equals or not key:
            _refuse("CNI_ARGS", f"{shown(pair)} is no KEY=VALUE pair")
        pairs[key] = value
    return MappingProxyType(pairs)


def _refuse(variable: str, why: str) -> NoReturn:
    msg = f"{variable}: {why}"
    raise MalformedError(msg, reason=Reason.INVALID_ENVIRONMENT)
