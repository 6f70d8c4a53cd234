"""State that the kernel removes with something else, without a report of each, as users of caches found.

Sources: https://github.com/thom311/libnl/issues/418, https://github.com/thom311/libnl/issues/340: routes went
with a link or a next hop, and a cache that followed reports still had them. Here classes go with their qdisc.
"""

from __future__ import annotations

import subprocess
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from contract.linux_lab import needs_namespaces
from contract.virtual_lab import VirtualLab
from k8s_rdma.linux.netlink.rtnl import Rtnl
from k8s_rdma.linux.netns import Namespaces
from k8s_rdma.linux.virtual.kernel import VirtualSriov

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = needs_namespaces

DEVICE = "enp3s0f0-tx"
CLASS = ("dev", DEVICE, "parent", "1:1", "classid", "1:12", "htb")
RATES = (30, 40)


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[VirtualSriov]:
    """As of an agent that has seen a VF with rates."""
    lab = VirtualLab(tmp_path, 4)
    tc("class", "change", *CLASS, "rate", "30mbit", "ceil", "40mbit", "burst", "128k", "cburst", "128k")
    with closing(lab), closing(opened()) as kernel:
        assert rates(kernel) == RATES
        yield kernel


def opened() -> VirtualSriov:
    return VirtualSriov(Namespaces(), Rtnl())


def tc(*words: str) -> None:
    subprocess.run(["tc", *words], check=True)


def rates(kernel: VirtualSriov) -> tuple[int, int]:
    vf = kernel.observe().pfs[0].vfs[2]
    return vf.min_tx_rate_mbps, vf.max_tx_rate_mbps


def test_rates_of_classes_that_went_with_their_qdisc_are_not_shown(kernel: VirtualSriov):
    tc("qdisc", "del", "dev", DEVICE, "root")
    tc("qdisc", "add", "dev", DEVICE, "root", "handle", "1:", "htb")
    tc("class", "add", "dev", DEVICE, "parent", "1:", "classid", "1:1", "htb", "rate", "1gbit")
    assert rates(kernel) == (0, 0)
    with closing(opened()) as fresh:
        assert rates(fresh) == (0, 0)


def test_rates_are_shown_as_the_last_of_many_changes_left_them(kernel: VirtualSriov):
    for rate in range(50, 60):
        limits = ("rate", f"{rate}mbit", "ceil", f"{rate + 10}mbit")
        tc("class", "replace", *CLASS, *limits, "burst", "128k", "cburst", "128k")
    assert rates(kernel) == (59, 69)
