"""Pods after one that attached XDP programs to its interface, or set attributes that move along with it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import bpf_programs
from e2e.node import Node, pod
from k8s_rdma.linux.netns import entered
from k8s_rdma_demo.cluster.cni_plugin import CniError

if TYPE_CHECKING:
    import mmap
    import socket
    from collections.abc import Iterator

SECRET = b"PASSWORD of the next tenant"
RECEIVE = """
import socket, sys
receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
receiver.bind(("", 7777))
receiver.settimeout(20)
print("ready", flush=True)
print(receiver.recv(99).decode(), flush=True)
"""


def inside(netns: str, *command: str) -> list[str]:
    return ["nsenter", f"--net={netns}", *command]


def attach(program: int, netns: str, *, by_link: bool) -> int | None:
    """Attach an XDP program to a pod's interface, as the pod may; returns the bpf_link that holds it."""
    namespace = os.open(netns, os.O_RDONLY)
    try:
        with entered(namespace):
            if by_link:
                return bpf_programs.link_xdp("eth0", program)
            bpf_programs.attach_xdp("eth0", program)
            return None
    finally:
        os.close(namespace)


def address_in(node: Node, netns: str) -> str:
    [link] = node.ip("address", "show", "eth0", netns=netns)
    return next(each["local"] for each in link["addr_info"] if each["family"] == "inet")


def send_between(node: Node, sender: str, receiver: str) -> str:
    """Return the text that one pod receives if another sends a datagram with the secret."""
    python = [sys.executable, "-c"]
    with subprocess.Popen(inside(receiver, *python, RECEIVE), stdout=subprocess.PIPE, text=True) as listening:
        assert listening.stdout
        assert listening.stdout.readline() == "ready\n"
        sent = f"socket.sendto({SECRET!r}, ({address_in(node, receiver)!r}, 7777))"
        code = f"import socket; socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); {sent}"
        subprocess.run(inside(sender, *python, code), check=True)
        return listening.stdout.read().strip()


@pytest.mark.parametrize("by_link", [False, True], ids=["netlink", "bpf_link"])
def test_program_of_an_ended_pod_neither_reads_nor_drops_traffic_of_the_next_one(
    node: Node, by_link: bool
) -> None:
    array, spying = bpf_programs.spy()
    dropping = bpf_programs.load(bpf_programs.returning(bpf_programs.XDP_DROP))
    held = [array, spying, dropping]

    async def scenario() -> None:
        runtime = node.runtime(chained=False)
        other = await runtime.add(pod("other", {"min_tx_rate": 1, "pf": {"name": "enp1s0f0"}}))
        for program in (spying, dropping):
            tenant = await runtime.add(pod("tenant-a", {"min_tx_rate": 1, "pf": {"name": "enp1s0f0"}}))
            link = attach(program, tenant.netns, by_link=by_link)
            if link is not None:
                held.append(link)
            await runtime.delete(tenant)
            bpf_programs.clear(array)
            successor = await runtime.add(pod("tenant-b", {"min_tx_rate": 1, "pf": {"name": "enp1s0f0"}}))
            [interface] = node.ip("-details", "link", "show", "eth0", netns=successor.netns)
            assert "xdp" not in interface
            assert send_between(node, other.netns, successor.netns) == SECRET.decode()
            await runtime.delete(successor)
        await runtime.delete(other)
        assert bpf_programs.seen_by(array) == bytes(8)

    try:
        asyncio.run(scenario())
    finally:
        for descriptor in held:
            os.close(descriptor)
    assert node.leftovers() == {}


@pytest.fixture
def bpf_files(node: Node, tmp_path: Path) -> Iterator[Path]:
    """A BPF file system, in a mount namespace of its own."""
    mount = f"mount -t bpf bpf {tmp_path} && echo ready && exec cat"
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", mount]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdin
        assert holder.stdout
        if holder.stdout.readline() != "ready\n":
            pytest.skip("no BPF file system can be mounted here")
        yield Path(f"/proc/{holder.pid}/root{tmp_path}")
        holder.stdin.close()


def test_link_that_is_pinned_and_of_no_process_does_not_reach_the_next_pod(
    node: Node, bpf_files: Path
) -> None:
    """A pod with a mounted bpffs may leave it so; there is no process whose end would end it."""
    array, spying = bpf_programs.spy()

    async def scenario() -> None:
        runtime = node.runtime(chained=False)
        other = await runtime.add(pod("other", {"min_tx_rate": 1, "pf": {"name": "enp1s0f0"}}))
        tenant = await runtime.add(pod("tenant-a", {"min_tx_rate": 1, "pf": {"name": "enp1s0f0"}}))
        link = attach(spying, tenant.netns, by_link=True)
        assert link is not None
        bpf_programs.pin(link, str(bpf_files / "link"))
        os.close(link)
        await runtime.delete(tenant)
        bpf_programs.clear(array)
        successor = await runtime.add(pod("tenant-b", {"min_tx_rate": 1, "pf": {"name": "enp1s0f0"}}))
        assert send_between(node, other.netns, successor.netns) == SECRET.decode()
        assert bpf_programs.seen_by(array) == bytes(8)
        for each in (other, successor):
            await runtime.delete(each)

    try:
        asyncio.run(scenario())
    finally:
        for descriptor in (array, spying):
            os.close(descriptor)
    assert node.leftovers() == {}


def test_xdp_socket_that_outlives_its_pod_is_unbound(node: Node) -> None:
    """A process outside may hold it. The queue is the next pod's, which could not bind to it otherwise."""

    def bind(netns: str) -> tuple[socket.socket, mmap.mmap]:
        namespace = os.open(netns, os.O_RDONLY)
        try:
            with entered(namespace):
                return bpf_programs.bind_xdp_socket("eth0")
        finally:
            os.close(namespace)

    async def scenario() -> None:
        runtime = node.runtime(chained=False)
        tenant = await runtime.add(pod("a", {"min_tx_rate": 1, "pf": {"name": "enp1s0f0"}}))
        held = bind(tenant.netns)
        with pytest.raises(OSError, match="busy"):
            bind(tenant.netns)
        await runtime.delete(tenant)
        successor = await runtime.add(pod("b", {"min_tx_rate": 1, "pf": {"name": "enp1s0f0"}}))
        again = bind(successor.netns)
        for each, _memory in (held, again):
            each.close()
        await runtime.delete(successor)

    asyncio.run(scenario())
    assert node.leftovers() == {}


@pytest.mark.parametrize("when", ["before it is cleaned", "after it came home"])
def test_vf_of_an_agent_that_was_killed_is_clean_when_the_next_pod_gets_it(node: Node, when: str) -> None:
    array, spying = bpf_programs.spy()
    held = [array, spying]

    async def scenario() -> None:
        runtime = node.runtime(chained=False)
        other = await runtime.add(pod("other", {"min_tx_rate": 1, "pf": {"name": "enp1s0f0"}}))
        tenant = await runtime.add(pod("tenant-a", {"min_tx_rate": 1, "pf": {"name": "enp1s0f0"}}))
        if when == "before it is cleaned":
            held.append(attach(spying, tenant.netns, by_link=True) or 0)
            node.kill_agent()
            await runtime.delete(tenant)
        else:
            report = node.try_report()
            assert report
            [interface] = next(
                entry.interfaces for entry in report.allocations if entry.pod.name == "tenant-a"
            )
            await runtime.delete(tenant)
            node.kill_agent()
            held.append(bpf_programs.link_xdp(f"enp1s0f0v{interface.vf}", spying))
        node.start_agent()
        successor = await runtime.add(pod("tenant-b", {"min_tx_rate": 1, "pf": {"name": "enp1s0f0"}}))
        bpf_programs.clear(array)
        assert send_between(node, other.netns, successor.netns) == SECRET.decode()
        assert bpf_programs.seen_by(array) == bytes(8)
        for each in (other, successor):
            await runtime.delete(each)

    try:
        asyncio.run(scenario())
    finally:
        for descriptor in held:
            os.close(descriptor)
    assert node.leftovers() == {}


def test_pod_has_an_interface_as_new_whatever_its_predecessor_set(node: Node) -> None:
    async def scenario() -> None:
        runtime = node.runtime(chained=False)
        tenant = await runtime.add(pod("a", {"min_tx_rate": 1, "pf": {"name": "enp1s0f0"}}))
        pristine = _shown(node, tenant.netns)
        set_link = ("link", "set", "eth0")
        node.ip(*set_link, "txqueuelen", "77", "group", "7", "alias", "mine", netns=tenant.netns)
        node.ip(*set_link, "gso_max_size", "4000", "multicast", "off", netns=tenant.netns)
        assert _shown(node, tenant.netns) != pristine
        await runtime.delete(tenant)
        successor = await runtime.add(pod("b", {"min_tx_rate": 1, "pf": {"name": "enp1s0f0"}}))
        assert _shown(node, successor.netns) == pristine
        await runtime.delete(successor)

    asyncio.run(scenario())
    assert node.leftovers() == {}


def _shown(node: Node, netns: str) -> dict[str, object]:
    [link] = node.ip("-details", "link", "show", "eth0", netns=netns)
    changing = {"ifindex", "link_index", "link_netnsid"}
    return {name: value for name, value in link.items() if name not in changing}


def test_check_names_the_program_that_its_pod_attached(node: Node) -> None:
    program = bpf_programs.load(bpf_programs.returning(bpf_programs.XDP_PASS))

    async def scenario() -> None:
        runtime = node.runtime(chained=False)
        tenant = await runtime.add(pod("a", {"min_tx_rate": 1}))
        await runtime.check(tenant)
        attach(program, tenant.netns, by_link=False)
        with pytest.raises(CniError, match=r"interface eth0 has XDP program \d+ \(driver\)"):
            await runtime.check(tenant)
        await runtime.delete(tenant)

    try:
        asyncio.run(scenario())
    finally:
        os.close(program)


@pytest.mark.parametrize("altname", ["rdma0", "eth0"])
def test_vf_with_an_altname_on_the_host_is_given_by_every_name_of_a_pod(node: Node, altname: str) -> None:
    """k8snetworkplumbingwg/sriov-cni 250 and 445: udev's names for VFs may be names in pods."""

    async def scenario() -> None:
        for chained in (False, True):
            runtime = node.runtime(chained=chained)
            node.ip("link", "property", "add", "dev", "enp1s0f0v0", "altname", altname)
            tenant = await runtime.add(pod("a", {"min_tx_rate": 1, "pf": {"name": "enp1s0f0"}}))
            links = node.ip("link", "show", netns=tenant.netns)
            assert not any(link.get("altnames") for link in links)
            await runtime.delete(tenant)

    asyncio.run(scenario())
    assert node.leftovers() == {}
