"""Addresses from the node's IPAM plugin, executed as the CNI specification says.

Source: CNI specification 1.1.0, section 4 "Plugin delegation": the delegate gets the same stdin and the
same environment. `CNI_IFNAME` is each interface's own name, so that no two of them share a lease.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from k8s_rdma.errors import K8sRdmaError, Reason
from k8s_rdma.wire.cni_result import decode_error, decode_ipam_result

if TYPE_CHECKING:
    from collections.abc import Mapping

    from k8s_rdma.core.ledger import DelegatedPlugin, Receipt
    from k8s_rdma.core.step import Route
    from k8s_rdma.wire.cni_result import IpamResult


@dataclass(frozen=True, slots=True, kw_only=True)
class IpamPlugins:
    """Runs IPAM plugins of the node whose root file system is at `host_root`."""

    host_root: Path
    timeout_s: float

    def require(self, ipam: DelegatedPlugin) -> None:
        """K8sRdmaError when the plugin is not on this node: said before anything is claimed."""
        self._command(ipam)

    async def add(self, receipt: Receipt, ipam: DelegatedPlugin) -> dict[str, IpamResult]:
        """Addresses for each interface, by name; what was leased before a failure stays to `delete`."""
        results = {}
        for interface in receipt.interfaces:
            stdout = await self._run(ipam, _environment("ADD", receipt, ipam, interface.ifname))
            results[interface.ifname] = decode_ipam_result(stdout)
        return results

    async def delete(self, receipt: Receipt, ipam: DelegatedPlugin) -> None:
        """Give every interface's addresses back; tries all, raises one error that names all that failed."""
        problems = []
        for interface in receipt.interfaces:
            try:
                await self._run(ipam, _environment("DEL", receipt, ipam, interface.ifname))
            except K8sRdmaError as error:
                problems.append(f"{interface.ifname}: {error}")
        if problems:
            msg = (
                f"container {receipt.attachment.container}: addresses of {len(problems)} interfaces not freed"
            )
            raise K8sRdmaError(msg, reason=Reason.IPAM_FAILURE, details="; ".join(problems))

    async def _run(self, ipam: DelegatedPlugin, environment: Mapping[str, str]) -> bytes:
        command = self._command(ipam)
        verb = f"IPAM plugin {ipam.plugin} {environment['CNI_COMMAND']} of {environment['CNI_IFNAME']}"
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=environment,
            )
        except OSError as error:
            msg = f"{verb}: cannot run {command[-1]}: {error.strerror}"
            raise K8sRdmaError(msg, reason=Reason.IPAM_FAILURE) from error
        try:
            async with asyncio.timeout(self.timeout_s):
                stdout, stderr = await process.communicate(ipam.netconf)
        except BaseException as error:
            process.kill()
            await process.wait()
            if isinstance(error, TimeoutError):
                msg = f"{verb}: no answer within {self.timeout_s:g} s"
                raise K8sRdmaError(msg, reason=Reason.IPAM_FAILURE) from error
            raise
        if process.returncode:
            msg = f"{verb}: {decode_error(stdout) or f'exit status {process.returncode}'}"
            raise K8sRdmaError(
                msg, reason=Reason.IPAM_FAILURE, details=stderr.decode(errors="replace").strip()
            )
        return stdout

    def _command(self, ipam: DelegatedPlugin) -> list[str]:
        for directory in ipam.cni_path.split(":"):
            path = Path(directory) / ipam.plugin
            if not directory or not os.access(self.host_root / path.relative_to(path.anchor), os.X_OK):
                continue
            if self.host_root == Path("/"):
                return [str(path)]
            # chroot(1) of coreutils rather than a pre-exec hook: forking a threaded Python is not safe.
            return ["chroot", str(self.host_root), str(path)]
        msg = f"IPAM plugin {ipam.plugin!r} is not in CNI_PATH {ipam.cni_path!r} (below {self.host_root})"
        raise K8sRdmaError(msg, reason=Reason.IPAM_FAILURE)


def addressing(results: Mapping[str, IpamResult]) -> dict[str, tuple[tuple[str, ...], tuple[Route, ...]]]:
    """Results as `core.plan.plan` takes them; a route without a gateway goes by its address's."""
    return {ifname: (result.addresses, result.routes) for ifname, result in results.items()}


def _environment(command: str, receipt: Receipt, ipam: DelegatedPlugin, ifname: str) -> dict[str, str]:
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "CNI_COMMAND": command,
        "CNI_CONTAINERID": receipt.attachment.container,
        "CNI_NETNS": receipt.netns.path,
        "CNI_IFNAME": ifname,
        "CNI_ARGS": ipam.cni_args,
        "CNI_PATH": ipam.cni_path,
    }
