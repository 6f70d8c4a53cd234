"""The guest's root: Debian's packages unpacked and pruned, and the kernel's modules that the lab uses."""

from __future__ import annotations

import lzma
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from lab import foreign
from lab.cpio import write_archive
from lab.packages import archives, kernel_version, unpack

if TYPE_CHECKING:
    from lab.cache import Cache

PRUNED = """
usr/share/{doc,man,locale,info,perl*,bash-completion,zoneinfo,lintian,bug,misc,common-licenses,pixmaps,zsh,fish}
usr/share/{doc-base,menu,i18n,debconf,dpkg,perl}
usr/lib/x86_64-linux-gnu/{perl*,gconv,libperl*} usr/bin/{perl*,dpkg*}
lib/{systemd,udev} usr/lib/{systemd,udev,locale,dpkg} var/cache/* var/lib/* var/run
usr/lib/python3.11/{test,idlelib,lib2to3,pydoc_data,tkinter,ensurepip}
"""
"""Shell patterns of files that no test reads. The tree is unpacked into memory at each boot."""

FOLDERS = (
    "lab", "src", "proc", "sys", "dev", "run", "tmp", "mnt", "disk", "root", "etc", "opt/cni/bin", "var/lib",
    "var/tmp",
)  # fmt: skip

KERNEL_MODULES = """
virtio_pci virtio_blk virtio_console 9p 9pnet_virtio overlay ext4
igb igbvf vfio_pci ib_uverbs rdma_ucm ib_umad rdma_rxe crc32_generic crc32c_generic
sch_tbf sch_htb sch_ingress cls_u32 act_mirred ifb veth bridge 8021q dummy psample
"""
"""With all that they depend on. Virtual SR-IOV takes those of traffic control; soft-RoCE, ext4 and netdevsim,
which is built apart, ask for checksums and `psample` by name."""


def guest(cache: Cache, debs: Path, built_modules: Path) -> Path:
    """Make `vmlinux`, the archive `root.cpio`, and the tree `root`: its Python compiles other layers."""

    def make(product: Path) -> None:
        tree, kernel = product / "root", product / "kernel"
        unpack(debs / "guest", tree)
        unpack(debs / "kernel", kernel)
        _prune(tree)
        _furnish(tree)
        compile_python(tree, "/usr/lib/python3.11")
        _take_modules(kernel, tree, kernel_version(debs), built_modules)
        _unpack_kernel(kernel / f"boot/vmlinuz-{kernel_version(debs)}", product / "vmlinux")
        write_archive(tree, product / "root.cpio", nodes=True)
        shutil.rmtree(kernel)

    made_of = archives(debs, "guest"), archives(debs, "kernel"), built_modules.name
    return cache.product("guest", *made_of, Path(__file__), make=make)


def compile_python(tree: Path, folder: str, *, python: Path | None = None) -> None:
    """Make byte code of a folder: packages are without it, and imports cost three times as much without.

    The guest's own interpreter does so, which is that of the tree `python` if this tree is without one.
    """
    root = python or tree
    compiling = ("-m", "compileall", "-q", "-j2", "--invalidation-mode", "unchecked-hash")
    command = foreign.command(
        root, "/usr/bin/python3.11", *compiling, "-s", str(tree), f"{tree}{folder}", name="python3"
    )
    # Templates of source code among the packages do not compile, which is no error.
    subprocess.run(
        command, env=os.environ | {"PYTHONHOME": f"{root}/usr"}, check=False, stdout=subprocess.DEVNULL
    )


def _prune(tree: Path) -> None:
    patterns = " ".join(PRUNED.split())
    subprocess.run(("bash", "-c", f"rm -rf {patterns}"), cwd=tree, check=True)


def _furnish(tree: Path) -> None:
    for name in FOLDERS:
        (tree / name).mkdir(parents=True, exist_ok=True)
    (tree / "var/run").symlink_to("/run")
    _link_busybox(tree)
    (tree / "usr/bin/python3").symlink_to("python3.11")
    (tree / "etc/passwd").write_text(
        "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/bin/sh\n"
    )
    (tree / "etc/group").write_text("root:x:0:\nnogroup:x:65534:\n")
    (tree / "etc/hosts").write_text("127.0.0.1 localhost\n")


def _link_busybox(tree: Path) -> None:
    """Link its applets if no package brings the program. sh is bash: busybox' one prefers its own `ip`."""
    listed = subprocess.run((tree / "bin/busybox", "--list"), capture_output=True, text=True, check=True)
    for applet in listed.stdout.split():
        if not any(
            os.path.lexists(tree / f"{folder}/{applet}") for folder in ("bin", "usr/bin", "sbin", "usr/sbin")
        ):
            (tree / "bin" / applet).symlink_to("busybox")
    (tree / "bin/sh").unlink(missing_ok=True)
    (tree / "bin/sh").symlink_to("bash")


def _take_modules(kernel: Path, tree: Path, version: str, built: Path) -> None:
    """Take the needs of KERNEL_MODULES, and modules built out of tree, which depmod prefers in `updates`."""
    _kmod(tree, "depmod", "-b", str(kernel), version)
    wanted: set[str] = set()
    for name in KERNEL_MODULES.split():
        shown = _kmod(tree, "modprobe", "-d", str(kernel), "-S", version, "--show-depends", name)
        wanted |= {line.split()[1] for line in shown.splitlines() if line.startswith("insmod ")}
    for path in wanted:
        target = tree / Path(path).relative_to(kernel)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    folder = tree / "lib/modules" / version
    for name in ("modules.order", "modules.builtin", "modules.builtin.modinfo"):
        shutil.copy(kernel / "lib/modules" / version / name, folder)
    (folder / "updates").mkdir()
    for module in built.glob("*.ko"):
        shutil.copy(module, folder / "updates")
    _kmod(tree, "depmod", "-b", str(tree), version)


def _kmod(tree: Path, name: str, *arguments: str) -> str:
    command = foreign.command(tree, "/bin/kmod", *arguments, name=name)
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _unpack_kernel(compressed: Path, into: Path) -> None:
    """Write the kernel as ELF, which QEMU starts at once: unpacking it in the guest takes seconds."""
    image = compressed.read_bytes()
    into.write_bytes(lzma.LZMADecompressor().decompress(image[image.index(b"\xfd7zXZ\x00") :]))
