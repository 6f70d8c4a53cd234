"""`k8s-rdma version`: this installation, as a line or as a document."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, distribution

import msgspec

from k8s_rdma import __version__
from k8s_rdma.cli.formats import CommandAnswer, Output
from k8s_rdma.linux import receipts
from k8s_rdma.wire.doctor import Speaks, VersionDocument, encode_version
from k8s_rdma.wire.nesting import require_shallow

DISTRIBUTION = "k8s-rdma"


def print_version(output: Output) -> None:
    """Print the version of this installation, as a line or as a document."""
    components = versions()
    commit = f", commit {components.commit}" if components.commit else ""
    line_of_text = f"{DISTRIBUTION} {components.version}{commit}, Python {components.python}"
    output.write(
        CommandAnswer(
            document=lambda: encode_version(components),
            names=[f"{DISTRIBUTION}/{components.version}"],
            show=lambda page: page.print(line_of_text),
        )
    )


def versions() -> VersionDocument:
    """Return version and origin of this installation."""
    return VersionDocument(
        version=__version__,
        commit=commit_of(_direct_url()),
        python=platform.python_version(),
        speaks=Speaks(ledger=receipts.VERSION),
    )


def commit_of(direct_url: str | None) -> str | None:
    """Return the commit, if an installer recorded it (`direct_url.json`, PEP 610)."""
    try:
        require_shallow(direct_url or "")
        origin = msgspec.json.decode(direct_url, type=_DirectUrl).vcs_info if direct_url else None
    except ValueError:
        return None
    return origin.commit_id if origin else None


def _direct_url() -> str | None:
    try:
        return distribution(DISTRIBUTION).read_text("direct_url.json")
    except PackageNotFoundError:
        return None


class _Origin(msgspec.Struct):
    commit_id: str


class _DirectUrl(msgspec.Struct):
    vcs_info: _Origin | None = None
