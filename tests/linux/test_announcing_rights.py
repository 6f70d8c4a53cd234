"""Announcements of an agent without the right to raw sockets, and its error for the rest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ANNOUNCE = """
import sys
from k8s_rdma.linux.pod_interface import send_announcements
from k8s_rdma.linux.netlink.rtnl import Rtnl
from network_namespaces import create_namespace
from k8s_rdma.linux.netns import entered

namespace = create_namespace()
with entered(namespace), Rtnl() as rtnl:
    rtnl.change(1, "lo", up=True)
    link = rtnl.link("lo")
    assert link.carrier
    send_announcements({link: (sys.argv[1],)}, rtnl, namespace)
"""


@pytest.mark.parametrize(
    ("address", "refusal"),
    [("fd00::1/64", "announcing IPv6 addresses needs CAP_NET_RAW"), ("10.0.0.1/24", "")],
)
def test_announcing_without_raw_sockets_refuses_only_ipv6_and_says_why(address: str, refusal: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, or a user namespace that makes one (`make test`)")
    announced = subprocess.run(
        ["setpriv", "--bounding-set=-net_raw", sys.executable, "-c", ANNOUNCE, address],
        capture_output=True,
        check=False,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert refusal in announced.stderr
    assert announced.returncode == bool(refusal), announced.stderr
