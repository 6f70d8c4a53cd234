"""Real VFs handed to programs by vfio-pci, and back from wherever they were left."""

from __future__ import annotations

import fcntl
import os
import struct
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from contract.hardware_lab import PFS, needs_hardware
from contract.lab import give, home_of, needs, previous_of, state_of
from contract.linux_lab import ip, run
from hardware.netlink_lab import soft_rdma_device
from k8s_rdma.core.plan import undo
from k8s_rdma.core.step import BindVf, ConfigureVfs, VfConfig, VfRef
from k8s_rdma.core.types import Setting
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.discovery.netlink_queries import NetlinkQueries
from k8s_rdma.linux.netns import current_namespace
from k8s_rdma.linux.sysfs import Sysfs
from k8s_rdma.linux.vf.binding import VfBinding
from k8s_rdma.linux.vf.moves import HostNamespace, VfLocator, VfRdma
from k8s_rdma.linux.vfio import vfio_group

pytestmark = needs_hardware

SET_CONTAINER, SET_IOMMU, GET_DEVICE = 0x3B68, 0x3B66, 0x3B6A
MAC = "02:11:22:33:44:55"
TYPE1 = 1
"""`include/uapi/linux/vfio.h`."""


@pytest.fixture
def vf(lab):
    needs(lab, Setting.VFIO_PCI)
    return VfRef(lab.pcis[0], 1)


@pytest.fixture
def step(lab, vf):
    return BindVf(
        vf=vf,
        pci=state_of(lab, vf).pci,
        driver="vfio-pci",
        kernel_driver=lab.vf_driver,
        home=home_of(lab, vf),
    )


def write(step, name, text):
    Path(f"/sys/bus/pci/devices/{step.pci}/{name}").write_text(text)


def test_program_has_a_device_node_once_the_vf_is_bound(lab, step):
    lab.kernel.apply(step)
    assert Path(vfio_group(step.pci)).is_char_device()
    lab.kernel.apply(step.inverse)
    assert not list(Path("/dev/vfio").glob("[0-9]*"))
    with pytest.raises(KernelError):
        vfio_group(step.pci)


@pytest.mark.parametrize("left", ["override", "unbound", "override and unbound", "bound without override"])
def test_vf_is_given_back_from_wherever_a_crash_left_it(lab, step, left):
    before, seen = lab.kernel.observe(), lab.seen(step.home.name)
    if left == "bound without override":
        lab.kernel.apply(step)
        write(step, "driver_override", "\n")
    if left.startswith("override"):
        write(step, "driver_override", "vfio-pci")
    if left.endswith("unbound"):
        write(step, "driver/unbind", step.pci)
    lab.another_kernel().apply(step.inverse)
    assert (lab.kernel.observe(), lab.seen(step.home.name)) == (before, seen)
    assert "vfio" not in Path(f"/sys/bus/pci/devices/{step.pci}/driver_override").read_text()


def test_vf_is_bound_from_wherever_a_crash_left_it(lab, step):
    write(step, "driver_override", "vfio-pci")
    lab.kernel.apply(step)
    lab.kernel.apply(step.inverse)
    write(step, "driver/unbind", step.pci)
    lab.kernel.apply(step)
    assert "vfio-pci" in state_of(lab, step.vf).unusable
    lab.kernel.apply(step.inverse)


def test_vf_is_given_back_although_vfs_get_no_driver_by_themselves(lab, step):
    autoprobe = Path(f"/sys/class/net/{PFS[0]}/device/sriov_drivers_autoprobe")
    lab.kernel.apply(step)
    autoprobe.write_text("0")
    try:
        lab.kernel.apply(step.inverse)
    finally:
        autoprobe.write_text("1")
    assert home_of(lab, step.vf) == step.home


def test_netdev_that_comes_back_is_as_at_home_whatever_the_kernel_called_it(lab, step):
    kernel_name, mtu = "given0", 1400
    run("ip", "link", "set", step.home.name, "name", kernel_name, "mtu", str(mtu))
    lab.kernel.observe()
    changed = BindVf(
        vf=step.vf,
        pci=step.pci,
        driver=step.driver,
        kernel_driver=step.kernel_driver,
        home=home_of(lab, step.vf),
    )
    lab.kernel.apply(changed)
    lab.kernel.apply(changed.inverse)
    assert home_of(lab, step.vf) == changed.home


def test_driver_that_another_than_we_gave_it_to_is_left_with_the_vf(lab, step):
    lab.kernel.apply(step)
    foreign = BindVf(
        vf=step.vf, pci=step.pci, driver="pci-stub", kernel_driver=step.kernel_driver, home=step.home
    )
    for each in (foreign, foreign.inverse):
        with pytest.raises(KernelError, match=r"VF 1 of PF .*: it is bound to vfio-pci"):
            lab.kernel.apply(each)
    lab.kernel.apply(step.inverse)


def test_vf_that_a_program_has_open_is_waited_for_and_given_back_when_it_ends(lab, step):
    lab.kernel.apply(step)
    hurried = lab.another_kernel(return_timeout_s=2.0)
    retried_at_once = "its driver still has not released it"  # a retry that waited as long delayed other pods
    with opened_by_a_program(step.pci):
        for failure in ("its driver did not release it within 2 s", retried_at_once, retried_at_once):
            with pytest.raises(KernelError, match=failure) as caught:
                hurried.apply(step.inverse)
            assert "a program still has it open" in caught.value.details
    lab.kernel.apply(step.inverse)
    assert home_of(lab, step.vf) == step.home


def test_vf_whose_program_had_a_mac_from_the_pf_has_its_own_again_at_home(lab, step):
    needs(lab, Setting.MAC)
    before, config = lab.kernel.observe(), VfConfig(index=step.vf.index, mac=MAC)
    previous = previous_of(lab, step.vf.pf, config)
    steps = [
        ConfigureVfs(pf=step.vf.pf, configs=(config,), previous=(previous,)),
        replace(step, mac=MAC),
    ]
    for each in steps:
        lab.kernel.apply(each)
    assert state_of(lab, step.vf).mac == MAC
    for each in undo(steps):
        lab.kernel.apply(each)
    assert lab.kernel.observe() == before


def test_soft_rdma_device_on_the_netdev_goes_with_it_and_is_not_waited_for(lab, step):
    with soft_rdma_device(step.home.name) as name:
        assert state_of(lab, step.vf).rdma_device == name
        lab.kernel.apply(step)
        assert state_of(lab, step.vf).rdma_device is None
        lab.kernel.apply(step.inverse)
        run("rdma", "link", "add", name, "type", "rxe", "netdev", step.home.name)
    assert home_of(lab, step.vf) == step.home


class LateRdma(VfRdma):
    """Of a card whose functions have an RDMA device, and get one some looks after their driver."""

    looks, after = 0, 0

    def names(self, pci):
        self.looks += 1
        return {"mlx5_9"} if self.looks == 1 or self.looks > self.after else set()


@pytest.fixture
def make_binding():
    with NetlinkQueries() as queries:
        namespace, sysfs = current_namespace(), Sysfs()

        def make(kind=VfRdma, **options):
            rdma = kind(queries=queries, sysfs=sysfs, host=namespace)
            places = VfLocator(HostNamespace(queries.rtnl, namespace), sysfs)
            return rdma, VfBinding(rtnl=queries.rtnl, sysfs=sysfs, places=places, rdma=rdma, **options)

        try:
            yield make
        finally:
            os.close(namespace)


@pytest.fixture
def binding(make_binding):
    return make_binding()[1]


def test_rdma_device_that_a_vf_had_is_waited_for_after_its_netdev(lab, make_binding):
    vf = VfRef(lab.pcis[0], 1)
    rdma, binding = make_binding(LateRdma)
    rdma.after, home = 20, home_of(lab, vf)
    binding.take_guid(vf, "ff:ff:ff", home)
    assert rdma.looks == rdma.after + 1
    assert home_of(lab, vf) == home


def test_rdma_device_that_does_not_come_back_is_an_error(lab, make_binding):
    vf = VfRef(lab.pcis[0], 1)
    rdma, binding = make_binding(LateRdma, timeout_s=1.0)
    rdma.after, home = 10_000, home_of(lab, vf)
    with pytest.raises(KernelError, match=r"igbvf made no RDMA device in 1 s"):
        binding.take_guid(vf, "ff:ff:ff", home)


def test_driver_is_bound_anew_for_an_address_that_it_has_not_and_the_netdev_is_as_at_home(lab, binding):
    """No InfiniBand card is here; the end of a MAC stands for the GUID that is the end of its address."""
    vf = VfRef(lab.pcis[0], 1)
    home, before = home_of(lab, vf), index_of(lab, vf)
    binding.take_guid(vf, home.mac[-8:], home)
    assert index_of(lab, vf) == before
    binding.take_guid(vf, "ff:ff:ff", home)
    assert index_of(lab, vf) != before
    assert home_of(lab, vf) == home


def test_driver_that_is_gone_is_bound_for_its_address_and_one_in_a_pod_left_alone(lab, binding):
    vf, netns = VfRef(lab.pcis[0], 1), lab.namespace()
    moving = give(lab, vf, netns)
    lab.kernel.apply(moving)
    binding.take_guid(vf, "ff:ff:ff", moving.home)
    assert lab.seen("rdma0", netns) is not None
    lab.kernel.apply(moving.inverse)
    driver = Path(f"/sys/bus/pci/devices/{state_of(lab, vf).pci}/driver")
    (driver / "unbind").write_text(state_of(lab, vf).pci)
    binding.take_guid(vf, "ff:ff:ff", moving.home)
    assert home_of(lab, vf) == moving.home


def index_of(lab, vf):
    return ip(None, "link", "show", home_of(lab, vf).name)[0]["ifindex"]


@contextmanager
def opened_by_a_program(pci):
    """As DPDK opens it."""
    container = os.open("/dev/vfio/vfio", os.O_RDWR | os.O_CLOEXEC)
    group = os.open(vfio_group(pci), os.O_RDWR | os.O_CLOEXEC)
    device = None
    try:
        fcntl.ioctl(group, SET_CONTAINER, struct.pack("i", container))
        fcntl.ioctl(container, SET_IOMMU, TYPE1)
        device = fcntl.ioctl(group, GET_DEVICE, bytearray(pci.encode() + b"\0"), True)
        yield
    finally:
        for descriptor in (device, group, container):
            if descriptor is not None:
                os.close(descriptor)
