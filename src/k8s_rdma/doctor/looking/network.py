"""Facts of the CNI configuration: what the runtime's directories hold, and whether our executable runs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from k8s_rdma.doctor.node.cni import OUR_PLUGINS, CniFacts, CniFile
from k8s_rdma.wire.conflist import is_read

if TYPE_CHECKING:
    from collections.abc import Sequence

    from k8s_rdma.doctor.looking.host import Host

_QUESTION = b'{"cniVersion":"1.0.0"}'


def cni_facts(
    host: Host, *, conf_dir: str, bin_dirs: Sequence[str], run_dir: str, calls_check: bool
) -> CniFacts:
    """OSError where a directory cannot be listed. run_dir: the agent's. calls_check: as in the facts."""
    programs = {name: f"{each}/{name}" for each in reversed(bin_dirs) for name in host.names(each)}
    files = tuple(_file(host, conf_dir, name) for name in host.names(conf_dir) if is_read(name))
    broken = {name: why for name in OUR_PLUGINS & programs.keys() if (why := _fault(host, programs[name]))}
    return CniFacts(
        directory=conf_dir,
        files=files,
        bin_dirs=tuple(bin_dirs),
        programs=frozenset(programs),
        broken=broken,
        run_dir=run_dir,
        calls_check=calls_check,
    )


def _file(host: Host, directory: str, name: str) -> CniFile:
    try:
        return CniFile(name=name, text=host.read(f"{directory}/{name}"))
    except OSError as error:
        return CniFile(name=name, text=None, why=error.strerror or str(error))


def _fault(host: Host, path: str) -> str:
    """Why it does not answer VERSION, for which it needs nobody; empty when it does."""
    if not os.access(host.here(path), os.X_OK):
        return f"{path} is not executable"
    try:
        said = host.run([path], stdin=_QUESTION, environment={"CNI_COMMAND": "VERSION"})
    except OSError as error:
        return str(error)
    return "" if b"supportedVersions" in said else f"it answers VERSION by {said[:80]!r}"
