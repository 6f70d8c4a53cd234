"""Namespaces by path and inode, held, gone, and if that cannot be determined."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from contract.linux_lab import needs_namespaces
from k8s_rdma.core.step import NetnsRef
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.netns import Namespaces, current_namespace, entered
from network_namespaces import create_namespace

pytestmark = needs_namespaces


@pytest.fixture
def netns():
    descriptor = create_namespace()
    yield descriptor
    os.close(descriptor)


def inode(descriptor):
    return os.fstat(descriptor).st_ino


def by_path(descriptor):
    """The kernel keeps such a path for as long as the descriptor is open."""
    return NetnsRef(f"/proc/{os.getpid()}/fd/{descriptor}", inode(descriptor))


def here():
    descriptor = current_namespace()
    try:
        return inode(descriptor)
    finally:
        os.close(descriptor)


def test_thread_is_in_the_namespace_while_entered_and_back_after_a_failure(netns):
    home = here()
    with pytest.raises(LookupError), entered(netns):
        raise LookupError(here())
    assert here() == home != inode(netns)
    with entered(netns):
        assert here() == inode(netns)


def test_entering_fails_and_the_thread_stays_when_it_is_no_namespace():
    home = here()
    with (
        Path("/dev/null").open("rb") as other,
        pytest.raises(KernelError, match="setns: EINVAL"),
        entered(other.fileno()),
    ):
        pass
    assert here() == home


def test_namespace_is_opened_by_path_when_the_inode_agrees(netns):
    with Namespaces().opened(by_path(netns)) as found:
        assert inode(found) == inode(netns)


def test_namespace_is_gone_when_another_is_at_its_path(netns):
    other = NetnsRef(by_path(netns).path, inode(netns) + 1)
    with Namespaces().opened(other) as found:
        assert found is None
    assert not Namespaces().alive(other)
    with pytest.raises(KernelError, match="no longer exists"), Namespaces().existing(other):
        pass


def test_namespace_is_gone_when_its_path_is(tmp_path):
    gone = NetnsRef(str(tmp_path / "gone"), 1)
    assert not Namespaces().alive(gone)
    with Namespaces().opened(gone) as found:
        assert found is None


def test_namespace_of_a_process_is_gone_with_the_process():
    assert not Namespaces().alive(NetnsRef("/proc/4194305/ns/net", 1))  # above the largest pid_max


@pytest.mark.parametrize("path", ["plain file", "directory/that/is/not/there"])
def test_namespace_counts_as_alive_if_that_cannot_be_determined(tmp_path, path):
    (tmp_path / "plain file").touch()
    untold = NetnsRef(str(tmp_path / path), 1)
    assert Namespaces().alive(untold)
    with pytest.raises(KernelError, match="cannot be accessed"), Namespaces().opened(untold):
        pass


def test_process_namespace_counts_as_alive_without_the_processes_of_the_host(tmp_path):
    assert Namespaces(tmp_path).alive(NetnsRef("/proc/1/ns/net", 1))


@pytest.mark.parametrize("path", ["/run/netns/pod", "/var/run/netns/pod"])
def test_paths_are_those_of_the_host(tmp_path, path, netns):
    directory = tmp_path / "run/netns"
    directory.mkdir(parents=True)
    (directory / "pod").symlink_to(by_path(netns).path)
    (tmp_path / "var").mkdir()
    (tmp_path / "var/run").symlink_to("/run")
    with Namespaces(tmp_path).opened(NetnsRef(path, inode(netns))) as found:
        assert found is not None


def test_held_namespace_is_found_until_released_although_its_path_is_broken(netns):
    namespaces = Namespaces()
    sandbox = namespaces.hold(netns, "/nowhere/pod")
    assert sandbox == NetnsRef("/nowhere/pod", inode(netns))
    again = namespaces.hold(netns, "/nowhere/pod")
    namespaces.release(again)
    with namespaces.opened(sandbox) as found:
        assert inode(found) == inode(netns)
    namespaces.release(sandbox)
    with pytest.raises(KernelError), namespaces.opened(sandbox):
        pass


def test_held_namespace_does_not_depend_on_the_descriptor_it_came_by():
    namespaces, descriptor = Namespaces(), create_namespace()
    sandbox = namespaces.hold(descriptor, "/nowhere/pod")
    os.close(descriptor)
    assert namespaces.alive(sandbox)
    namespaces.close()
    namespaces.release(sandbox)


def test_held_namespace_does_not_stand_for_another_path_of_the_same_inode(netns, tmp_path):
    """The kernel gives a dead namespace's inode to a new one; they differ by their paths."""
    namespaces = Namespaces()
    held = namespaces.hold(netns, "/nowhere/new")
    dead = NetnsRef(str(tmp_path / "dead"), held.inode)
    assert namespaces.alive(held)
    assert not namespaces.alive(dead)
    namespaces.release(held)


def test_descriptor_lent_survives_a_release_meanwhile(netns):
    namespaces = Namespaces()
    held = namespaces.hold(netns, "/nowhere/pod")
    with namespaces.opened(held) as lent:
        namespaces.release(held)
        assert os.fstat(lent).st_ino == held.inode


def test_holding_fails_if_the_descriptor_is_not_of_a_network_namespace():
    for path in ("/dev/null", "/proc/self/ns/mnt"):
        with (
            Path(path).open("rb") as other,
            pytest.raises(KernelError, match="not one of a network namespace"),
        ):
            Namespaces().hold(other.fileno(), "/run/netns/pod")
