"""QEMU's command line for a machine of a shape."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lab import foreign

if TYPE_CHECKING:
    from lab.image import Image
    from lab.shape import Shape

ACCELERATOR = "K8S_RDMA_LAB_ACCEL"
"""Variable: `kvm` if the machine has it. Otherwise guests are emulated, on all machines alike: a machine may
have the device of KVM and no processor that serves it."""
KERNEL = (
    "console=ttyS0 panic=-1 quiet loglevel=4 no_timer_check nokaslr mitigations=off tsc=reliable "
    "8250.nr_uarts=1 net.ifnames=0"
)


@dataclass(frozen=True, slots=True)
class Wiring:
    """Descriptors of sockets of which QEMU has one end. fabric: joins machines; unset for a single one."""

    channel: int
    monitor: int
    cable: int
    terminal: int
    fabric: int | None = None

    def descriptors(self) -> tuple[int, ...]:
        """Return all of them."""
        joined = () if self.fabric is None else (self.fabric,)
        return (self.channel, self.monitor, self.cable, self.terminal, *joined)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosting:
    """A guest's resources on this machine: folders (source read-only), files of console and disk, counter.

    name and number distinguish it from others of its fabric.
    """

    name: str
    number: int
    shared: Path
    source: Path
    console: Path
    disk: Path | None
    tsc_khz: int


def command_line(image: Image, shape: Shape, hosting: Hosting, wiring: Wiring) -> list[str]:
    """Return QEMU's command line; QEMU ends on request, or when the guest's kernel panics or powers off."""
    usr = f"{image.qemu}/usr"
    firmware = ["-L", f"{usr}/share/qemu", "-L", f"{usr}/share/seabios", "-L", f"{usr}/lib/ipxe/qemu"]
    return foreign.command(
        image.qemu, "/usr/bin/qemu-system-x86_64",
        "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", *firmware,
        "-name", hosting.name, "-M", "q35,hpet=off,vmport=off,smbus=off,sata=off,usb=off",
        *_accelerator(), "-smp", "2", "-m", str(shape.memory_mb),
        "-kernel", str(image.vmlinux), "-initrd", str(image.initrd), "-append", _append(shape, hosting),
        *_iommu(shape), *_channels(hosting, wiring), *_folders(hosting), *_disk(hosting), *_memory(shape),
        *_network(shape, hosting, wiring),
    )  # fmt: skip


def accelerator() -> str:
    """Return the accelerator of guests: `tcg` or `kvm`."""
    return os.environ.get(ACCELERATOR, "tcg")


def _accelerator() -> list[str]:
    if accelerator() == "kvm":
        return ["-accel", "kvm", "-cpu", "host"]
    return ["-accel", "tcg,thread=multi", "-cpu", "Nehalem,+rdrand"]


def _append(shape: Shape, hosting: Hosting) -> str:
    disk = " lab.disk" if hosting.disk else ""
    iommu = " intel_iommu=on" if shape.iommu else ""
    clock = f" tsc_early_khz={hosting.tsc_khz}" if accelerator() == "tcg" else ""
    return f"{KERNEL} lab.name={hosting.name} lab.vfs={shape.vfs}{disk}{iommu}{clock}"


def _iommu(shape: Shape) -> list[str]:
    return ["-device", "intel-iommu"] if shape.iommu else []


def _channels(hosting: Hosting, wiring: Wiring) -> list[str]:
    return [
        "-chardev", f"file,id=console,path={hosting.console},append=on", "-serial", "chardev:console",
        "-chardev", f"socket,id=monitor,fd={wiring.monitor}", "-mon", "chardev=monitor,mode=control",
        "-device", "virtio-serial-pci,id=serial",
        "-chardev", f"socket,id=terminal,fd={wiring.terminal}", "-device", "virtconsole,chardev=terminal",
        "-chardev", f"socket,id=channel,fd={wiring.channel}",
        "-device", "virtserialport,chardev=channel,name=lab.agent",
        "-chardev", f"socket,id=cable,fd={wiring.cable}",
        "-device", "virtserialport,chardev=cable,name=lab.cable",
    ]  # fmt: skip


def _folders(hosting: Hosting) -> list[str]:
    found = []
    for tag, path, option in (("lab", hosting.shared, ""), ("src", hosting.source, ",readonly=on")):
        found += ["-fsdev", f"local,id={tag},path={path},security_model=none,multidevs=remap{option}"]
        found += ["-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]
    return found


def _disk(hosting: Hosting) -> list[str]:
    if hosting.disk is None:
        return []
    return [
        "-drive",
        f"file={hosting.disk},if=none,id=disk,format=raw",
        "-device",
        "virtio-blk-pci,drive=disk",
    ]


def _memory(shape: Shape) -> list[str]:
    if not shape.numa:
        return []
    found = []
    for node in (0, 1):
        found += ["-object", f"memory-backend-ram,id=m{node},size={shape.memory_mb // 2}M"]
        found += ["-numa", f"node,nodeid={node},cpus={node},memdev=m{node}"]
        bus = f"pxb-pcie,id=pxb{node},bus_nr={32 * (node + 1)},numa_node={node},bus=pcie.0"
        found += ["-device", bus]
    return found


def _network(shape: Shape, hosting: Hosting, wiring: Wiring) -> list[str]:
    """Return two PFs on one switch, which the fabric joins with another machine's."""
    found = []
    for pf in (0, 1):
        bus = f"pxb{pf}" if shape.numa else "pcie.0"
        found += ["-device", f"pcie-root-port,id=rp{pf},chassis={pf + 1},slot={pf + 1},bus={bus}"]
        found += ["-netdev", f"hubport,id=eth{pf},hubid=0"]
        found += [
            "-device",
            f"igb,netdev=eth{pf},bus=rp{pf},mac=52:54:00:aa:{hosting.number:02x}:{pf + 1:02x}",
        ]
    if wiring.fabric is not None:
        found += ["-netdev", f"dgram,id=fabric,local.type=fd,local.str={wiring.fabric}"]
        found += ["-netdev", "hubport,id=uplink,hubid=0,netdev=fabric"]
    return found
