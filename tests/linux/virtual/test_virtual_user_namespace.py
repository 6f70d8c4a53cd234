"""Virtual SR-IOV for whoever may make namespaces: no rights on the machine itself are needed."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = r"""
set -e
ip link add up0 type veth peer name wire0
ip link set wire0 up
"$PYTHON" -m k8s_rdma.linux.virtual create --name enp1s0f0 --pci 0000:01:00.0 --uplink up0 --vfs 2
"$PYTHON" - <<'END'
from k8s_rdma.core.step import ConfigureInterface, GiveVf, SetRates, VfHome, VfRate, VfRef
from network_namespaces import create_namespace
from k8s_rdma.linux.netns import Namespaces
from k8s_rdma.linux.virtual.kernel import VirtualSriov

namespaces = Namespaces()
kernel = VirtualSriov(namespaces)
(before,) = kernel.observe().pfs
vf = before.vfs[0]
netns = namespaces.hold(create_namespace(), "/run/netns/pod")
home = VfHome(name=vf.netdev, mac=vf.mac, mtu=vf.mtu)
steps = [
    SetRates(pf=before.pci, rates=(VfRate(0, 100, 200),), previous=(VfRate(0),)),
    GiveVf(vf=VfRef(before.pci, 0), home=home, netns=netns, ifname="rdma0"),
    ConfigureInterface(netns=netns, ifname="rdma0", addresses=("10.56.0.2/24",)),
]
for step in steps:
    kernel.apply(step)
given = kernel.observe().pfs[0].vfs[0]
print(given.netdev, given.min_tx_rate_mbps, given.max_tx_rate_mbps)
for step in reversed(steps):
    kernel.apply(step.inverse)
print(kernel.observe().pfs == (before,))
END
"$PYTHON" -m k8s_rdma.linux.virtual destroy --name enp1s0f0
ip -brief link | cut -d' ' -f1 | sort | tr '\n' ' '
"""
IN_NAMESPACES = ("unshare", "--user", "--map-root-user", "--mount", "--net")
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")


def may(*command):
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def prefix():
    """Return the command for namespaces, as user nobody if possible; skip if they cannot be made."""
    if not may(*IN_NAMESPACES, "true"):
        pytest.skip("needs user namespaces that an ordinary user may make (user.max_user_namespaces)")
    # That user may be unable to read this Python, or not exist here. Even root has no rights on the machine's
    # own namespaces once it is in a user namespace.
    as_nobody = (*NOBODY, *IN_NAMESPACES)
    imports = ("bash", "-c", f"{shlex.quote(sys.executable)} -c 'import k8s_rdma'")
    return as_nobody if os.geteuid() == 0 and may(*as_nobody, *imports) else IN_NAMESPACES


def test_vf_is_given_and_brought_home_when_an_ordinary_user_made_the_namespaces():
    ended = subprocess.run(
        [*prefix(), "bash", "-c", SCRIPT],
        env={**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    given, home, links = ended.stdout.splitlines()
    assert given == "None 100 200"
    assert home == "True"
    assert {name.partition("@")[0] for name in links.split()} == {"lo", "up0", "wire0"}
