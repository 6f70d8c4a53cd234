"""`k8s-rdma install-cni --follow` keeps ours in place while others come, change and go."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

import pytest

from install.node_files import BRIDGE, FILE, OURS, PORTMAP, NodeFiles, conflist
from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.install.network_mode import NetworkMode

if TYPE_CHECKING:
    from pathlib import Path

DEADLINE_S = 120


class Follower:
    """The process, and its log."""

    def __init__(
        self,
        node: NodeFiles,
        program: Path,
        *more: str,
        through: tuple[str, ...] = (),
        mode: str = "--follow",
    ) -> None:
        command = [sys.executable, "-m", "k8s_rdma", "install-cni", str(node.bin), "--network", "chained"]
        self._process = subprocess.Popen(
            [*through, *command, "--conf-dir", str(node.confs), mode, *more],
            env=os.environ | {"K8S_RDMA_CNI": str(program)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def told(self, event: str) -> dict[str, Any]:
        """The next line of this event; those before it are passed over."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            found: dict[str, Any] = json.loads(line)
            if found["event"] == event:
                return found
        pytest.fail(f"it ended without {event}")

    def failed(self) -> str:
        """Return its last message, that of its failure."""
        _, last = self._process.communicate(timeout=DEADLINE_S)
        assert self._process.returncode == 2
        return last

    def end(self) -> str:
        self._process.send_signal(signal.SIGTERM)
        return self.ended()

    def ended(self) -> str:
        out, _ = self._process.communicate(timeout=DEADLINE_S)
        assert self._process.returncode == 0
        return out


def test_ours_follows_the_other_and_stays_at_a_signal(tmp_path: Path, program: Path) -> None:
    node = NodeFiles.made(tmp_path / "node")
    other = node.confs / "10-pods.conflist"
    with Follower(node, program) as follower:
        assert "no network of another plugin is there" in follower.told("cni_not_in_place")["problems"][0]
        assert (node.bin / OURS).exists()
        other.write_text(conflist(BRIDGE))
        assert follower.told("cni_conf_written")["made_of"] == "10-pods.conflist"
        follower.told("cni_in_place")
        assert node.types() == ["bridge", OURS]
        with other.open("r+") as file:  # in place, as `cp` and some plugins' installers write
            file.write(conflist(BRIDGE, PORTMAP))
        follower.told("cni_conf_written")
        assert node.types() == ["bridge", "portmap", OURS]
        other.write_text("{")
        assert "10-pods.conflist: " in follower.told("cni_not_in_place")["problems"][0]
        assert node.types() == ["bridge", "portmap", OURS]
        other.unlink()
        follower.told("cni_conf_removed")
        assert not (node.confs / FILE).exists()
        other.write_text(conflist(BRIDGE))
        follower.told("cni_in_place")
        (node.bin / OURS).unlink()
        follower.told("cni_program_installed")
        follower.end()
    assert node.types() == ["bridge", OURS]


def test_program_that_undoes_ours_is_reported_and_not_raced(node: NodeFiles, program: Path) -> None:
    with Follower(node, program) as follower:
        follower.told("cni_in_place")
        for times, pause_s in ((1, 1), (2, 2)):
            (node.confs / FILE).rename(node.confs / f"{FILE}.cilium_bak")
            told = follower.told("cni_conf_undone")
            assert (told["times"], told["next_look_s"]) == (times, pause_s)
            assert node.types() == ["bridge", "portmap", OURS]


def test_next_one_takes_over_when_the_one_before_ends(node: NodeFiles, program: Path, tmp_path: Path) -> None:
    newer = tmp_path / "newer"
    newer.write_text("#!/bin/sh\necho newer\n")
    newer.chmod(0o755)
    with ExitStack() as stack:
        before = stack.enter_context(Follower(node, program))
        before.told("cni_in_place")
        after = stack.enter_context(Follower(node, newer))
        assert "another" in after.told("cni_waiting")["why"]
        assert (node.bin / OURS).read_bytes() == program.read_bytes()
        before.end()
        after.told("cni_in_place")
        assert (node.bin / OURS).read_bytes() == newer.read_bytes()


def test_ours_is_removed_at_a_signal_if_configured(node: NodeFiles, program: Path) -> None:
    pristine = node.state()
    without_capabilities = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")
    with Follower(node, program, "--remove", "--grace-s", "0.1", through=without_capabilities) as follower:
        follower.told("cni_in_place")
        assert node.types() == ["bridge", "portmap", OURS]
        out = follower.end()
    assert out.splitlines()[0] == f"removed {node.confs / FILE}"
    assert out.splitlines()[-1] == f"removed {node.bin / OURS}"
    assert node.state() == pristine


def test_it_waits_and_ends_when_ours_is_in_place(tmp_path: Path, program: Path) -> None:
    node = NodeFiles.made(tmp_path / "node")
    with Follower(node, program, mode="--wait") as waiter:
        waiter.told("cni_not_in_place")
        (node.confs / "10-pods.conflist").write_text(conflist(BRIDGE))
        waiter.told("cni_in_place")
        waiter.ended()
    assert node.types() == ["bridge", OURS]


def test_installer_does_not_wait_if_ours_was_chained_by_hand(node: NodeFiles, program: Path) -> None:
    (node.confs / "10-pods.conflist").write_text(conflist(BRIDGE, {"type": OURS}))
    with Follower(node, program, mode="--wait") as waiter:
        assert waiter.told("cni_in_place")["by_hand"] == "10-pods.conflist"
        waiter.ended()
    assert node.types() == ["bridge", OURS]


def test_a_directory_that_is_gone_for_good_ends_it(node: NodeFiles, program: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, or a user namespace that makes one (`make test`)")
    mounted = NodeFiles(bin=node.bin, confs=node.confs.parent / "mounted")
    mounted.confs.mkdir()
    subprocess.run(["mount", "--bind", node.confs, mounted.confs], check=True)
    try:
        with Follower(mounted, program) as follower:
            follower.told("cni_in_place")
            shutil.rmtree(node.confs)
            assert "removed from the node while it is mounted here" in follower.failed()
    finally:
        subprocess.run(["umount", mounted.confs], check=True)


def test_without_a_watch_of_the_kernel_it_says_so_and_looks(node: NodeFiles, program: Path) -> None:
    starved = 'echo 0 > /proc/sys/user/max_inotify_instances && exec "$@"'
    through = ("unshare", "--user", "--map-root-user", "sh", "-c", starved, "sh")
    if subprocess.run([*through, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs a user namespace")
    with Follower(node, program, through=through) as follower:
        assert follower.told("cni_dirs_polled")["every_s"] == 10
        follower.told("cni_in_place")
        assert node.types() == ["bridge", "portmap", OURS]


def test_directories_may_come_later(tmp_path: Path, program: Path) -> None:
    node = NodeFiles(bin=tmp_path / "bin", confs=tmp_path / "net.d")
    with Follower(node, program) as follower:
        assert "No such file" in follower.told("cni_waiting")["why"]
        node = NodeFiles.made(tmp_path)
        (node.confs / "10-pods.conflist").write_text(conflist(BRIDGE))
        follower.told("cni_in_place")
        assert node.types() == ["bridge", OURS]


@pytest.mark.parametrize("kept", NetworkMode)
@pytest.mark.parametrize("removed", NetworkMode)
def test_removal_and_keeper_exclude_each_other(
    node: NodeFiles, removed: NetworkMode, kept: NetworkMode
) -> None:
    keeper, remover = node.installation(kept), node.installation(removed)
    with keeper.locked(0), pytest.raises(K8sRdmaError, match="another"), remover.locked_to_remove(0):
        pass
    with remover.locked_to_remove(0), pytest.raises(K8sRdmaError, match="another"), keeper.locked(0):
        pass
    with remover.locked_to_remove(0):
        pass


def test_no_network_names_an_executable_that_cannot_be_there(node: NodeFiles, program: Path) -> None:
    installation = node.installation()
    installation.install(program)
    (node.bin / OURS).unlink()
    program.unlink()
    [told] = installation.install(program).problems
    assert "cannot be installed" in told
    assert node.types() == ["bridge", "portmap"]


def test_executable_that_cannot_be_replaced_leaves_the_network(node: NodeFiles, program: Path) -> None:
    installation = node.installation()
    installation.install(program)
    program.unlink()
    assert "cannot be installed" in installation.install(program).problems[0]
    assert node.types() == ["bridge", "portmap", OURS]
