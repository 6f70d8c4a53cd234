"""CNI plugins: configuration lists, the stdin of each plugin, and its execution.

Source: CNI specification 1.1.0, sections 1 to 3; `libcni/api.go` and `pkg/invoke` of the CNI library, whose
error messages users see in events.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from signal import strsignal
from typing import TYPE_CHECKING, Any

import msgspec

from k8s_rdma.errors import K8sRdmaError, MalformedError
from k8s_rdma.wire.json import decode
from k8s_rdma_demo.cluster.objects import JsonObject, go_json, go_quote

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SUPPORTED_VERSIONS = ("0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
_IP_TELLS_VERSION = ("0.3.0", "0.3.1", "0.4.0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflist:
    """A network: its name, the version spoken with its plugins, and the chain of them."""

    name: str
    cni_version: str
    plugins: tuple[JsonObject, ...]
    disable_check: bool = False

    def at_least(self, version: str) -> bool:
        """Report whether the list's version is that one or a later one."""
        return SUPPORTED_VERSIONS.index(self.cni_version) >= SUPPORTED_VERSIONS.index(version)

    def stdin_for(
        self,
        plugin: JsonObject,
        *,
        prev_result: JsonObject | None = None,
        capability_args: Mapping[str, Any] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> bytes:
        """The configuration of one plugin of the chain.

        capability_args: what the runtime knows, by capability; a plugin gets of it what its `capabilities`
        switch on, as `runtimeConfig`.
        """
        config = {**plugin, "name": self.name, "cniVersion": self.cni_version, **(extra or {})}
        if prev_result is not None:
            config["prevResult"] = prev_result
        enabled = [name for name, on in (plugin.get("capabilities") or {}).items() if on]
        runtime_config = {
            name: capability_args[name] for name in enabled if capability_args and name in capability_args
        }
        if runtime_config:
            config["runtimeConfig"] = runtime_config
        return go_json(config, order="deterministic")


class _Plugin(msgspec.Struct, frozen=True):
    type: str
    capabilities: dict[str, bool] | None = None


class _Document(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    cni_version: str
    plugins: list[_Plugin]
    disable_check: bool = False


_conflist_document = msgspec.json.Decoder(_Document)


def load_conflist(path: Path) -> Conflist:
    """Read a `.conflist` file; MalformedError names what is wrong, OSError when it cannot be read."""
    text = path.read_bytes()
    checked = decode(text, _conflist_document, str(path))
    if not checked.plugins:
        msg = f"{path}: plugins: wanted one at least"
        raise MalformedError(msg)
    if checked.cni_version not in SUPPORTED_VERSIONS:
        msg = (
            f"{path}: cniVersion: wanted one of {', '.join(SUPPORTED_VERSIONS)}, found {checked.cni_version}"
        )
        raise MalformedError(msg)
    return Conflist(
        name=checked.name,
        cni_version=checked.cni_version,
        plugins=tuple(msgspec.json.decode(text)["plugins"]),
        disable_check=checked.disable_check,
    )


def result_in_version(result: JsonObject, version: str) -> JsonObject:
    """A plugin's result as another version of the specification has it; what is empty is left out.

    Up to 0.4.0 an address tells its IP version and `dns` is always there (source: `types/040`, `types/100`).
    """
    converted = {name: value for name, value in result.items() if value} | {"cniVersion": version}
    old = version in _IP_TELLS_VERSION
    if result.get("ips"):
        converted["ips"] = [_address(ip, old=old) for ip in result["ips"]]
    if old:
        converted.setdefault("dns", {})
    return converted


def pod_ips(result: JsonObject, ifname: str) -> list[str]:
    """The addresses, without prefix length, of the pod's own interface (containerd: `selectPodIPs`).

    An address that names no interface of the result counts as this one's.
    """
    interfaces = result.get("interfaces") or []
    found = []
    for ip in result.get("ips") or []:
        index = ip.get("interface")
        named = interfaces[index]["name"] if index is not None and 0 <= index < len(interfaces) else ifname
        if named == ifname:
            found.append(str(ip["address"]).partition("/")[0])
    return found


def _address(ip: JsonObject, *, old: bool) -> JsonObject:
    fields = {name: value for name, value in ip.items() if name != "version"}
    return {**fields, "version": "6" if ":" in str(ip.get("address")) else "4"} if old else fields


class CniError(K8sRdmaError):
    """A plugin failed. code: of the CNI error; 0 when the plugin gave none."""

    def __init__(self, message: str, *, code: int = 0, details: str = "") -> None:
        super().__init__(message, details=details)
        self.code = code

    def __str__(self) -> str:
        return f"{self.message}; {self.details}" if self.details else self.message

    def with_context(self, context: str) -> CniError:
        """Return the error with the context before its message."""
        return CniError(f"{context}: {self.message}", code=self.code, details=self.details)


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """One call: the values of the CNI_* variables; path: the directories with plugins."""

    command: str
    path: tuple[Path, ...]
    container_id: str = ""
    netns: str = ""
    ifname: str = ""
    args: str = ""

    def environment(self) -> dict[str, str]:
        """The plugin's whole environment: this process's, with the CNI variables as they are in the call."""
        return {
            **os.environ,
            "CNI_COMMAND": self.command,
            "CNI_CONTAINERID": self.container_id,
            "CNI_NETNS": self.netns,
            "CNI_IFNAME": self.ifname,
            "CNI_ARGS": self.args,
            "CNI_PATH": os.pathsep.join(str(directory) for directory in self.path),
        }


class _ErrorDocument(msgspec.Struct, frozen=True):
    code: int = 0
    msg: str = ""
    details: str = ""


_decoder = msgspec.json.Decoder(_ErrorDocument)


def find_plugin(name: str, path: Sequence[Path]) -> Path:
    """The plugin's executable; CniError when no directory has it."""
    for directory in path:
        if (directory / name).is_file():
            return directory / name
    places = " ".join(str(directory) for directory in path)
    raise CniError(f"failed to find plugin {go_quote(name)} in path [{places}]")


async def run_plugin(plugin: str, invocation: Invocation, stdin: bytes, timeout_s: float) -> bytes:
    """Run a plugin to its end, in `/`; its stdout, or CniError when it does not exit with 0.

    One that takes longer, or whose caller is cancelled, is killed.
    """
    executable = find_plugin(plugin, invocation.path)
    try:
        process = await asyncio.create_subprocess_exec(
            executable,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd="/",
            env=invocation.environment(),
        )
    except OSError as error:
        raise _error(f"fork/exec {executable}: {(error.strerror or '').lower()}", b"", b"") from error
    try:
        async with asyncio.timeout(timeout_s):
            stdout, stderr = await process.communicate(stdin)
    except BaseException as interruption:
        await _kill(process)
        if isinstance(interruption, TimeoutError):
            raise CniError(f"netplugin failed: {_ending(process)} after {timeout_s:g} s") from interruption
        raise
    if process.returncode:
        raise _error(_ending(process), stdout, stderr)
    return stdout


def decode_result(stdout: bytes) -> dict[str, Any]:
    """The JSON object that a plugin printed; CniError when it printed something else."""
    try:
        return msgspec.json.decode(stdout, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CniError(f"error parsing the plugin's result {go_quote(_text(stdout))}: {error}") from error


def _error(ending: str, stdout: bytes, stderr: bytes) -> CniError:
    if not stdout and not stderr:
        return CniError(f"netplugin failed with no error message: {ending}")
    if not stdout:
        return CniError(f"netplugin failed: {go_quote(_text(stderr))}: {ending}")
    try:
        document = _decoder.decode(stdout)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        printed = go_quote(_text(stdout))
        return CniError(f"netplugin failed but error parsing its diagnostic message {printed}: {error}")
    return CniError(document.msg, code=document.code, details=document.details)


def _ending(process: asyncio.subprocess.Process) -> str:
    """Describe the exit as Go's exec.ExitError does."""
    status = process.returncode or 0
    return f"exit status {status}" if status >= 0 else f"signal: {(strsignal(-status) or '').lower()}"


async def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.communicate()


def _text(output: bytes) -> str:
    return output.decode(errors="replace")
