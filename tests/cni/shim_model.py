"""The program's duties for a call: when and with which code it is refused, and when the agent is asked."""

from __future__ import annotations

import json

from cni.netconf_oracle import NOTHING, SOMETHING, Found, look, parse
from k8s_rdma.wire.cni_result import SUPPORTED_VERSIONS
from k8s_rdma.wire.cni_socket import MAX_ENV_BYTES, MAX_STDIN_BYTES

MARKED = "marked"
"""The only container that has a marker."""

COMMANDS = ("ADD", "DEL", "CHECK", "STATUS", "GC", "VERSION")
FIRST_VERSION = {"CHECK": "0.4.0", "STATUS": "1.1.0", "GC": "1.1.0"}
NEEDED = {
    "ADD": ("CNI_CONTAINERID", "CNI_IFNAME", "CNI_NETNS"),
    "CHECK": ("CNI_CONTAINERID", "CNI_IFNAME", "CNI_NETNS"),
    "DEL": ("CNI_CONTAINERID", "CNI_IFNAME"),
}
MAX_FILE_NAME = 255
MAX_VERSION = 64


def refusal(env: dict[str, str], stdin: bytes) -> int | None:
    """The code with which the call is refused before anything is looked at but the call."""
    size = sum(len(f"{key}={value}".encode()) + 1 for key, value in env.items() if key.startswith("CNI_"))
    if env["CNI_COMMAND"] not in COMMANDS or size > MAX_ENV_BYTES:
        return 4
    if len(stdin) > MAX_STDIN_BYTES:
        return 6
    if env["CNI_COMMAND"] == "VERSION" and not stdin:
        return None
    found = look(stdin)
    return _refusal_of(env, found) if isinstance(found, Found) else found


def _refusal_of(env: dict[str, str], found: Found) -> int | None:
    version = "0.1.0" if found.version is None else found.version
    if len(json.dumps(version)) > MAX_VERSION:
        return 7
    if not _has(version, env["CNI_COMMAND"]):
        return 1
    needed = NEEDED.get(env["CNI_COMMAND"], ())
    if any(not env.get(name) for name in needed) or (needed and not _is_container_id(env["CNI_CONTAINERID"])):
        return 4
    return None


def _has(version: str, command: str) -> bool:
    if command in ("DEL", "VERSION"):
        return True
    first = FIRST_VERSION.get(command, "0.1.0")
    return version in SUPPORTED_VERSIONS[SUPPORTED_VERSIONS.index(first) :]


def _is_container_id(text: str) -> bool:
    return text[0].isalnum() and text.isascii() and all(c.isalnum() or c in "_.-" for c in text)


def left_as(env: dict[str, str], stdin: bytes) -> str | None:
    """The file in which a DEL without an answer is left, if it can be in one."""
    network = parse(stdin.decode()).last("name")
    if not isinstance(network, str) or "\0" in network:
        return None
    name = f"{env['CNI_CONTAINERID']}:{env['CNI_IFNAME']}:{network}"
    return None if "/" in name or len(name.encode()) > MAX_FILE_NAME else name


def asks(env: dict[str, str], found: Found, *, exclusive: bool) -> bool:
    """Whether the agent has to be asked about a call that is not refused.

    exclusive: whether pods may hold devices that are attached to them without their asking.
    """
    container = env.get("CNI_CONTAINERID", "")
    may_want_something = found.wish != NOTHING or found.delegate or exclusive or found.exclusive_devices
    unsure = len(container) > MAX_FILE_NAME and may_want_something
    may_have_something = container == MARKED or unsure
    return {
        "VERSION": False,
        "STATUS": found.only_plugin,
        "GC": True,
        "ADD": found.prev_result is None or may_want_something,
        "DEL": may_have_something,
        "CHECK": may_have_something or found.wish == SOMETHING,
    }[env["CNI_COMMAND"]]
