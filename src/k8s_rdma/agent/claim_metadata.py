"""Device metadata of prepared claims: a file a request, mounted in the containers that request the device.

A file is written when its claim is prepared, before kubelet is answered, and again when the interfaces are in
the pod, before its containers start: then it has the interfaces' names and addresses. It changes with the
rates, is rewritten in place, as mounts keep it, and is removed once the claim is unprepared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from k8s_rdma.agent.host_files import HostFiles
from k8s_rdma.core.ledger import ClaimUid, LedgerClaim
from k8s_rdma.wire.cdi import CdiMount
from k8s_rdma.wire.device_metadata import DescribedRequest, base_name, container_path, encode_metadata

if TYPE_CHECKING:
    from collections.abc import Iterator

    from k8s_rdma.core.ledger import Ledger

DIRECTORY = "claim-metadata"
"""The directory of the files in `runDir`."""

READ_ONLY = ("ro", "bind", "nosuid", "nodev", "noexec")
"""Options of the mounts."""


@dataclass(frozen=True, slots=True)
class ClaimMetadata:
    """Manages the files; all calls block.

    directory: by its path on the node. describe: describes the requests of a claim as they are now.
    """

    files: HostFiles
    directory: PurePosixPath
    describe: Callable[[LedgerClaim], Iterable[DescribedRequest]]

    def write(self, claim: LedgerClaim) -> None:
        """Write the files of a claim as it is now. K8sRdmaError names the one that cannot be written."""
        for request in self.describe(claim):
            path = self._path(claim.uid, request.name)
            former = self.files.read(path)
            data = encode_metadata(request, former)
            if data != former:
                self.files.rewrite(path, data)

    def mounts(self, claim: LedgerClaim) -> dict[str, CdiMount]:
        """Return the mount of each request's file, by the request's name."""
        return {
            request.name: CdiMount(
                host_path=str(self._path(claim.uid, request.name)),
                container_path=container_path(request),
                options=READ_ONLY,
            )
            for request in self.describe(claim)
        }

    def remove(self, claim: ClaimUid) -> None:
        """Remove the files of a claim. KernelError names those that stay."""
        self.files.remove(path for path, uid in self._found() if uid == claim)

    def stale_paths(self, ledger: Ledger) -> list[PurePosixPath]:
        """Find the files of claims that are not prepared. KernelError as `HostFiles.names`."""
        return [path for path, uid in self._found() if uid not in ledger.claims]

    def _found(self) -> Iterator[tuple[PurePosixPath, ClaimUid]]:
        for name in self.files.names(self.directory):
            yield self.directory / name, ClaimUid(name.partition("_")[0])

    def _path(self, claim: ClaimUid, request: str) -> PurePosixPath:
        """Return the path of a request's file; neither UIDs nor names of requests have underscores."""
        return self.directory / f"{claim}_{base_name(request)}.json"
