"""CNI plugins: the execution of one, and its errors.

Source: CNI specification 1.1.0, section 2; `libcni/api.go` and `pkg/invoke` of the CNI library, whose
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

from k8s_rdma.errors import K8sRdmaError
from k8s_rdma_demo.cluster.objects import go_quote

if TYPE_CHECKING:
    from collections.abc import Sequence


class CniError(K8sRdmaError):
    """A plugin failed. code: of the CNI error; 0 if the plugin did not give it."""

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
