"""CRI-O with conmon and runc."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from e2e.container_runtime import IMAGE, ContainerRuntime
from e2e.neighbours import search_path

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = """
[crio]
root = "{directory}/root"
runroot = "{directory}/state"
storage_driver = "vfs"
log_dir = "{directory}/logs"
version_file = "{directory}/version"
clean_shutdown_file = ""
[crio.api]
listen = "{directory}/crio.sock"
stream_address = "127.0.0.1"
stream_port = "0"
[crio.runtime]
default_runtime = "runc"
cgroup_manager = "cgroupfs"
conmon_cgroup = "pod"
apparmor_profile = "unconfined"
seccomp_profile = "unconfined"
enable_criu_support = false
hooks_dir = []
irqbalance_config_restore_file = "disable"
disable_hostport_mapping = true
cdi_spec_dirs = ["{directory}/cdi"]
[crio.runtime.runtimes.runc]
runtime_path = "{directory}/runc-here"
runtime_root = "{directory}/runc"
monitor_cgroup = "pod"
[crio.image]
pause_image = "{image}"
signature_policy = "{directory}/policy.json"
signature_policy_dir = "{directory}/policies"
namespaced_auth_dir = "{directory}/auth"
[crio.network]
network_dir = "{directory}/net.d"
plugin_dirs = ["{directory}/bin"]
cni_default_network = "{network}"
[crio.nri]
enable_nri = false
"""
RUNC_HERE = r"""#!/bin/sh
previous=
for word; do
  [ "$previous" != --bundle ] || sed --in-place --null-data "$word/config.json" \
    -e 's/,\s*"CAP_SYS_RESOURCE"//g' -e 's/"CAP_SYS_RESOURCE",\s*//g' \
    -e 's/"oomScoreAdj":\s*-[0-9]*/"oomScoreAdj":0/'
  previous=$word
done
exec {runc} "$@"
"""
"""Settings that need CAP_SYS_RESOURCE are not requested: root may lack it, and containerd does without."""
POLICY = '{"default": [{"type": "insecureAcceptAnything"}]}'

PREPARE = (
    "mkdir -p {directory}/cni-cache /var/lib/cni && mount --bind {directory}/cni-cache /var/lib/cni && "
    "mkdir /run/crio && ln -s {directory}/crio.sock /run/crio/crio.sock &&"
)
"""CRI-O's results of CNI calls have a fixed place, and others look for its socket in one."""


class Crio(ContainerRuntime):
    """`crio`; its images are imported by buildah, which keeps them in the same way.

    network: the only network that it takes (`cni_default_network`); by default that of the first file.
    """

    name = "crio"

    def __init__(self, directory: Path, *, network: str = "", prepare: str = "", **options: Any) -> None:
        """options: as `ContainerRuntime` has them."""
        prepare += PREPARE.format(directory=directory)
        super().__init__(directory, prepare=prepare, **options)
        self.environment |= {"PATH": search_path(self.environment["PATH"])}
        self._network = network

    def command(self) -> list[str]:
        config, policy = self.directory / "crio.conf", self.directory / "policy.json"
        config.write_text(CONFIG.format(directory=self.directory, image=IMAGE, network=self._network))
        policy.write_text(POLICY)
        runc = self.directory / "runc-here"
        runc.write_text(RUNC_HERE.format(runc=shutil.which("runc", path=self.environment["PATH"])))
        runc.chmod(0o755)
        return ["crio", "--config", str(config), "--config-dir", ""]

    def use(self, conflist: Path) -> None:
        before = self._networks_found()
        staging = self.directory / "new.conflist"  # of that directory, it would look twice
        staging.write_text(conflist.read_text())
        staging.replace(self.directory / "net.d" / "10-net.conflist")
        self.wait(lambda: self._networks_found() > before, f"{conflist} is not taken")

    def _networks_found(self) -> int:
        return self.log().count("Found CNI network")

    def import_image(self, archive: Path) -> None:
        self._pull(f"docker-archive:{archive}")

    def import_oci(self, archive: Path, name: str) -> None:
        self._buildah("tag", self._pull(f"oci-archive:{archive}"), name)

    def _pull(self, what: str) -> str:
        """The image's ID."""
        policy = ("--signature-policy", self.directory / "policy.json")
        return self._buildah("pull", "--quiet", *policy, what).strip()

    def _buildah(self, *command: str | Path) -> str:
        store = ("--root", self.directory / "root", "--runroot", self.directory / "state")
        return self.run("buildah", *store, "--storage-driver", "vfs", *command)
