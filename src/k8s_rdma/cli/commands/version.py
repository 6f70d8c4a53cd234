"""`k8s-rdma version`."""

from __future__ import annotations

from k8s_rdma.cli.bundles import with_bundles
from k8s_rdma.cli.options import OutputForm


@with_bundles
def version_command(*, output: OutputForm) -> None:
    """Print the version, its commit if known, and Python's version.

    The document has all protocol versions that it supports as well.
    """
    from k8s_rdma.cli.version import print_version

    print_version(output)
