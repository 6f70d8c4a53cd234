"""Facts of `runtime`: in order, and for each kind of finding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.doctor.node.runtime import Runtime, RuntimeFacts, check_runtime

if TYPE_CHECKING:
    from k8s_rdma.doctor.finding import Finding


def runtime(*runtimes: Runtime, needs: tuple[str, ...] = (), cdi_dir: str = "/var/run/cdi") -> list[Finding]:
    return list(check_runtime(RuntimeFacts(runtimes=runtimes, needs_cdi=needs, cdi_dir=cdi_dir)))


def containerd(version: str, **more: object) -> Runtime:
    return Runtime(name="containerd", version=version, config="/etc/containerd/config.toml", **more)


def crio(version: str, *, credentials: bool | None) -> list[Finding]:
    found = Runtime(name="crio", version=version, config="/etc/crio/crio.conf")
    return list(check_runtime(RuntimeFacts(runtimes=(found,), credentials=credentials)))


SLOT = ("k8s-rdma.io/slot",)
IN_ORDER = runtime(containerd("1.7.24", enable_cdi=True), needs=SLOT)

CASES = {
    "runtime-none": runtime(),
    "runtime-version-unknown": runtime(containerd("")),
    "runtime-too-old": runtime(containerd("1.5.9")),
    "runtime-no-annotations": crio("1.28.11", credentials=False),
    "runtime-asked-annotations": crio("1.28.11", credentials=True),
    "runtime-configuration": runtime(containerd("1.7.1", fault="Expected '=' (at line 1)")),
    "runtime-no-cdi": runtime(containerd("1.7.24"), needs=SLOT),
    "runtime-cdi-directory": runtime(containerd("2.2.0", cdi_dirs=("/etc/cdi",)), needs=SLOT),
}
