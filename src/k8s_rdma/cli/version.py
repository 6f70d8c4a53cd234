"""`k8s-rdma version`: of this program and of what it speaks, for who must know whether two of them fit."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import PackageNotFoundError, distribution

import msgspec

from k8s_rdma import __version__
from k8s_rdma.linux import receipts
from k8s_rdma.wire.doctor import Speaks, VersionDocument, encode_version

DISTRIBUTION = "k8s-rdma"


class _Origin(msgspec.Struct):
    commit_id: str


class _DirectUrl(msgspec.Struct):
    vcs_info: _Origin | None = None


def tell_version(*, as_json: bool) -> None:
    """Print it, as a line or as a document."""
    components = versions()
    if as_json:
        sys.stdout.write(encode_version(components).decode())
        return
    commit = f", commit {components.commit}" if components.commit else ""
    sys.stdout.write(f"{DISTRIBUTION} {components.version}{commit}, Python {components.python}\n")


def versions() -> VersionDocument:
    """Version and origin of this installation."""
    return VersionDocument(
        version=__version__,
        commit=commit_of(_direct_url()),
        python=platform.python_version(),
        speaks=Speaks(ledger=receipts.VERSION),
    )


def commit_of(direct_url: str | None) -> str | None:
    """The commit that an installer recorded (`direct_url.json`, PEP 610)."""
    try:
        origin = msgspec.json.decode(direct_url, type=_DirectUrl).vcs_info if direct_url else None
    except msgspec.MsgspecError:
        return None
    return origin.commit_id if origin else None


def _direct_url() -> str | None:
    try:
        return distribution(DISTRIBUTION).read_text("direct_url.json")
    except PackageNotFoundError:
        return None
