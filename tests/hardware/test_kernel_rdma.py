"""RDMA devices of VFs: their way with the netdev, and their counters. They are of software (rdma_rxe)."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path

import pytest

from contract.hardware_lab import needs_hardware
from contract.lab import give, home_of, state_of
from contract.linux_lab import inside, run
from k8s_rdma.core.step import VfRef
from k8s_rdma.linux.discovery.netlink_queries import NetlinkQueries
from k8s_rdma.linux.netlink.rdma import NetnsMode
from k8s_rdma.linux.netns import current_namespace
from k8s_rdma.linux.sysfs import Sysfs
from k8s_rdma.linux.vf.moves import HostNamespace, VfLocator, VfMoves, VfRdma

pytestmark = needs_hardware


@pytest.fixture
def vf(lab):
    return VfRef(lab.pcis[1], 0)


@pytest.fixture
def queries():
    with NetlinkQueries() as opened:
        yield opened


@pytest.fixture
def at_home(lab, vf):
    """An RDMA device on the VF's netdev at home; it dies when that leaves its namespace."""
    with soft_device(home_of(lab, vf).name) as name:
        yield name


@pytest.fixture
def exclusive(queries):
    if queries.rdma() is None or queries.rdma().netns_mode() is not NetnsMode.EXCLUSIVE:
        pytest.skip("needs SR-IOV hardware: RDMA devices exclusive (rdma system set netns exclusive)")


@contextmanager
def soft_device(netdev, netns=None, name="rxe_kernel"):
    if not Path("/sys/module/rdma_rxe").exists():
        pytest.skip("needs SR-IOV hardware: not even rdma_rxe is here (modprobe rdma_rxe)")
    run(*inside(netns), "rdma", "link", "add", name, "type", "rxe", "netdev", netdev)
    try:
        yield name
    finally:
        run("rdma", "link", "delete", name, check=False)


def devices(netns=None):
    """The names of the RDMA devices that a namespace sees."""
    return {line.split()[1].rstrip(":") for line in run(*inside(netns), "rdma", "dev").splitlines()}


def move(lab, queries, name, netns):
    """A device that was made in a namespace is the host's at first."""
    with lab.namespaces.existing(netns) as namespace:
        queries.rdma().move(queries.rdma().indexes()[name], namespace, "move")


class Noted(VfRdma):
    """Notes after each move who sees which devices, and whether the VF's netdev is at home."""

    def __init__(self, lab, vf, netns, queries):
        self._host = current_namespace()
        super().__init__(queries=queries, sysfs=Sysfs(), host=self._host)
        self._lab, self._vf, self._netns = lab, vf, netns
        self.places = VfLocator(HostNamespace(queries.rtnl, self._host), Sysfs())
        self.moves = VfMoves(
            host=HostNamespace(queries.rtnl, self._host),
            namespaces=lab.namespaces,
            places=self.places,
            rdma=self,
        )
        self.notes = []

    def move_to_pod(self, *arguments):
        super().move_to_pod(*arguments)
        self._note()

    def bring_home(self, *arguments):
        super().bring_home(*arguments)
        self._note()

    def _note(self):
        at_home = self.places.at_home(self._vf) is not None
        self.notes.append((devices(), devices(self._netns), at_home))


def test_rdma_device_goes_before_the_netdev(lab, vf, queries, exclusive, at_home):
    netns = lab.namespace()
    noted = Noted(lab, vf, netns, queries)
    noted.moves.move_to_pod(give(lab, vf, netns))
    assert noted.notes == [(set(), {at_home}, True)]
    assert noted.places.at_home(vf) is None


def test_rdma_device_comes_home_before_the_netdev(lab, vf, queries, exclusive):
    netns = lab.namespace()
    noted = Noted(lab, vf, netns, queries)
    step = give(lab, vf, netns)
    noted.moves.move_to_pod(step)
    noted.notes.clear()
    with soft_device("rdma0", netns) as name:
        move(lab, queries, name, netns)
        assert (devices(), devices(netns)) == (set(), {name})
        noted.moves.bring_home(step.inverse)
    assert noted.notes == [({name}, set(), False)]
    assert home_of(lab, vf) == step.home


class OfFunction(VfRdma):
    """Counts RDMA devices of software as those of every function, which sysfs does not."""

    def names(self, _):
        return devices()


def test_rdma_device_gets_its_name_back_when_a_pod_renamed_it(lab, vf, queries, at_home):
    rdma, pci = OfFunction(queries=queries, sysfs=Sysfs(), host=0), state_of(lab, vf).pci
    run("rdma", "dev", "set", at_home, "name", "mine")
    for name in ("", at_home, at_home):
        rdma.restore_name(pci, name, "restore")
        assert devices() == {name or "mine"}


def test_vf_with_an_rdma_device_is_given_and_brought_home_in_either_mode(lab, vf, at_home):
    before, netns = home_of(lab, vf), lab.namespace()
    assert state_of(lab, vf).rdma_device == at_home
    step = give(lab, vf, netns)
    lab.kernel.apply(step)
    assert lab.seen("rdma0", netns) is not None
    lab.kernel.apply(step)
    lab.kernel.apply(step.inverse)
    assert home_of(lab, vf) == before


def test_rdma_device_stays_in_the_shared_mode(lab, vf, queries, at_home):
    if queries.rdma().netns_mode() is not NetnsMode.SHARED:
        pytest.skip("needs SR-IOV hardware: RDMA devices shared (rdma system set netns shared)")
    netns = lab.namespace()
    noted = Noted(lab, vf, netns, queries)
    noted.moves.move_to_pod(give(lab, vf, netns))
    assert noted.notes == [({at_home}, {at_home}, True)]


def test_counters_of_the_rdma_device_are_sampled_at_home(lab, vf, at_home):
    found = sampled(lab, vf, {})
    names = {file.name for file in Path(f"/sys/class/infiniband/{at_home}/ports/1/hw_counters").iterdir()}
    assert found.rdma.keys() == names - {"lifespan"}
    assert all(value >= 0 for value in found.rdma.values())


def test_counters_of_the_rdma_device_are_sampled_in_a_namespace(lab, vf, queries):
    netns = lab.namespace()
    lab.kernel.apply(give(lab, vf, netns))
    assert sampled(lab, vf, {vf: netns}).rdma == {}
    with soft_device("rdma0", netns) as name:
        if queries.rdma().netns_mode() is NetnsMode.EXCLUSIVE:
            move(lab, queries, name, netns)
        assert "sent_pkts" in sampled(lab, vf, {vf: netns}).rdma


def sampled(lab, vf, holders):
    return next(each for each in lab.kernel.sample(holders) if each.vf == vf)
