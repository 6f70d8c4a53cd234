"""Containerd and runc, Debian's or newer ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from e2e.container_runtime import IMAGE, ContainerRuntime, name_in

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["IMAGE", "Containerd"]

CONFIG = """
version = 2
root = "{directory}/root"
state = "{directory}/state"
disabled_plugins = ["io.containerd.internal.v1.opt"]
[grpc]
  address = "{directory}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{image}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  enable_cdi = true
  cdi_spec_dirs = ["{directory}/cdi"]
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{directory}/bin"
    conf_dir = "{directory}/net.d"
"""


class Containerd(ContainerRuntime):
    """`containerd`, whose images are imported by `ctr`."""

    name = "containerd"

    def command(self) -> list[str]:
        config = self.directory / "config.toml"
        config.write_text(CONFIG.format(directory=self.directory, image=IMAGE))
        return ["containerd", "--config", str(config)]

    def import_image(self, archive: Path) -> None:
        self._images("import", "--no-unpack", archive)

    def import_oci(self, archive: Path, name: str) -> None:
        self.import_image(archive)
        called = name_in(archive)
        (known,) = (each for each in self._images("list", "--quiet").split() if each.endswith(called))
        self._images("tag", "--force", known, name)

    def _images(self, *command: str | Path) -> str:
        return self.run("ctr", "--address", self.socket, "--namespace", "k8s.io", "images", *command)
