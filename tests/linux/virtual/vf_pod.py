"""Pods on virtual functions that send and receive whole frames, and the PF's counters of them."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import time

from contract.lab import PF0, home_of
from k8s_rdma.core.step import ConfigureInterface, GiveVf, VfRef
from k8s_rdma.linux.netns import entered
from k8s_rdma.linux.virtual.pf import MOST_DEBT

EXPERIMENTAL = 0x88B5
"""IEEE 802 local experimental ethertype 1: no other program here sends it."""
EVERYBODY = "ff:ff:ff:ff:ff:ff"
DEADLINE_S = 120
SCHEDULER = "enp3s0f0-tx"
UDP_SEGMENT = 103
"""`include/uapi/linux/udp.h`; Python 3.11 has no name for it."""


class Pod:
    """A VF in a namespace of its own, up, and a socket for whole frames on it."""

    def __init__(self, lab, index):
        vf, netns = VfRef(PF0, index), lab.namespace()
        home = home_of(lab, vf)
        lab.kernel.apply(GiveVf(vf=vf, home=home, netns=netns, ifname="rdma0"))
        self._begin(lab, index, netns, home)

    @classmethod
    def in_namespace(cls, lab, index, netns, home):
        """One on a VF that was given already."""
        self = cls.__new__(cls)
        self._begin(lab, index, netns, home)
        return self

    def _begin(self, lab, index, netns, home):
        self.port, self.netns, self.home = f"enp3s0f0r{index}", netns, home
        self.socket = self._listen(lab)

    def listen_anew(self, lab):
        """Forget received frames, and that the interface was down."""
        self.socket.close()
        self.socket = self._listen(lab)

    def _listen(self, lab):
        lab.kernel.apply(ConfigureInterface(netns=self.netns, ifname="rdma0"))
        with lab.namespaces.existing(self.netns) as namespace, entered(namespace):
            opened = frames("rdma0")
        deadline = time.monotonic() + DEADLINE_S
        while not forwards(self.port):
            assert time.monotonic() < deadline, f"{self.port} does not forward"
        return opened

    def send(self, payload, source=None, destination=EVERYBODY):
        self.socket.send(octets(destination) + octets(source or self.home.mac) + ethertype() + payload)

    def receive_until(self, payload):
        """Payloads received, up to this one."""
        received = []
        while payload not in received:
            received.append(self.socket.recv(2048)[14:].rstrip(b"\0"))
        return received


def forwards(port):
    """Report whether the bridge knows by now that a port is up; it learns it a moment later."""
    shown = subprocess.run(
        ["ip", "-json", "-details", "link", "show", "dev", port], capture_output=True, check=True
    )
    return json.loads(shown.stdout)[0]["linkinfo"]["info_slave_data"]["state"] == "forwarding"


def frames(ifname):
    """A socket for whole frames on an interface of the calling thread's namespace."""
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(EXPERIMENTAL))
    opened.bind((ifname, EXPERIMENTAL))
    opened.settimeout(DEADLINE_S)
    return opened


def octets(mac):
    return bytes.fromhex(mac.replace(":", ""))


def ethertype():
    return EXPERIMENTAL.to_bytes(2, "big")


def vf_class(index):
    """Of a VF's class: bytes sent, packets dropped, tokens."""
    shown = tc("-s", "class", "show", "dev", SCHEDULER)
    (found,) = re.findall(
        rf"class htb 1:{0x10 + index:x} .*?Sent (\d+) bytes.*?dropped (\d+),.*?\n tokens: (-?\d+)",
        shown,
        re.DOTALL,
    )
    return tuple(map(int, found))


def overdraw(lab, pod):
    """Have the VF of index 0, without reservation, send datagrams of 44 packets, split behind its class.

    At the floor each takes five seconds, which the class then owes.
    """
    lab.kernel.apply(ConfigureInterface(netns=pod.netns, ifname="rdma0", addresses=("10.9.0.1/24",)))
    with lab.namespaces.existing(pod.netns) as namespace, entered(namespace):
        opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with opened:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        opened.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, 1400)
        while vf_class(0)[2] >= -2 * MOST_DEBT:
            opened.sendto(bytes(44 * 1400), ("10.9.0.255", 9))


def tc(*arguments):
    return subprocess.run(["tc", *arguments], capture_output=True, text=True, check=True).stdout


def dropped_as_forged():
    (queue,) = json.loads(tc("-json", "-s", "qdisc", "show", "dev", "enp3s0f0-no"))
    return queue["drops"]
