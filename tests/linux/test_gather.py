"""Records of machines that were recorded themselves: both are observed alike."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from fakes.recorded_machine import RecordedMachine, RecordedQueries, read_machine
from k8s_rdma.core.pf_selection import PfRule, Selection
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.discovery.gather import RecordingQueries, RecordingSysfs, gather
from k8s_rdma.linux.discovery.observation import Observer
from k8s_rdma.linux.netlink.socket import NetlinkError
from k8s_rdma.linux.sysfs import error_name
from k8s_rdma.wire.machine import (
    LinkEntry,
    Machine,
    RefusedAnswer,
    SymbolicLink,
    decode_machine,
    encode_machine,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from k8s_rdma.core.kernel import Hardware, PfState
    from k8s_rdma.linux.netlink.rtnl import Link

MACHINES = sorted((Path(__file__).parent.parent / "machines").glob("*.yaml"), key=lambda path: path.stem)
SELECTIONS = (
    Selection(),
    Selection(require_rdma=False),
    Selection(require_rdma=False, rules=(PfRule(names=frozenset({"eth0", "enp59s0f0np0"})),)),
)
HOME = "devices/pci0000:00/0000:01:00.0"


def recorded(path: Path) -> RecordedMachine:
    return RecordedMachine(read_machine(path))


def gathered(machine: RecordedMachine) -> Machine:
    """Through the file."""
    return decode_machine(encode_machine(gather(machine.sysfs, machine.queries)))


def seen(machine: RecordedMachine, selection: Selection) -> Hardware:
    return Observer(machine.sysfs, machine.queries, selection).observe()


def without_macs(hardware: Hardware) -> Hardware:
    def pf(it: PfState) -> PfState:
        return replace(it, vfs=tuple(replace(vf, mac="", admin_mac="", node_guid="") for vf in it.vfs))

    return replace(hardware, pfs=tuple(map(pf, hardware.pfs)))


@pytest.mark.parametrize("path", MACHINES, ids=lambda path: path.stem)
def test_record_of_a_machine_is_seen_as_the_machine_is(path: Path) -> None:
    """Whatever the configuration; but for the MAC addresses, which are replaced."""
    record = gathered(recorded(path))
    for selection in SELECTIONS:
        of_record = seen(RecordedMachine(record), selection)
        assert without_macs(of_record) == without_macs(seen(recorded(path), selection))


@pytest.mark.parametrize("path", MACHINES, ids=lambda path: path.stem)
def test_record_of_a_record_is_the_same_record(path: Path) -> None:
    record = gathered(recorded(path))
    again = gathered(RecordedMachine(record))
    assert msgspec.structs.replace(again, about=record.about) == record


@pytest.mark.parametrize("name", ["igb", "igb-rxe", "netdevsim"])
def test_record_holds_all_that_the_machine_was_recorded_with(name: str) -> None:
    """These were recorded by `gather` from a running kernel, files that no code reads included."""
    machine = next(recorded(path) for path in MACHINES if path.stem == name)
    assert gathered(machine).sysfs == machine.machine.sysfs


def test_record_has_refused_reads_and_all_others() -> None:
    """As without CAP_NET_ADMIN."""
    machine = recorded(MACHINES[0])
    refused = msgspec.structs.replace(machine.machine, refused={"eswitch_modes": "EPERM"}, eswitch_modes={})
    record = gathered(RecordedMachine(refused))
    assert record.refused == {"eswitch_modes": "EPERM"}
    [unreadable] = record.about.unreadable
    assert "EPERM" in unreadable
    whole = gathered(machine)
    assert record.sysfs == whole.sysfs
    assert record.vfs == whole.vfs
    with pytest.raises(NetlinkError) as failure:
        RecordedMachine(record).queries.eswitch_modes()
    assert failure.value.errno == errno.EPERM


def test_record_holds_which_links_have_an_address() -> None:
    machine = recorded(next(path for path in MACHINES if path.stem == "connectx5"))
    assert gathered(machine).addressed_links == (2, 6, 19)


def test_record_of_a_machine_without_the_list_has_no_link_with_an_address() -> None:
    assert recorded(MACHINES[0]).queries.addressed_links() == frozenset()


def test_record_leaves_out_the_ends_of_pods_interfaces() -> None:
    machine = recorded(MACHINES[0])
    veth = LinkEntry(index=99, name="veth0123abcd", kind="veth", mac="02:00:00:00:00:99")
    index = machine.machine.links[0].index
    links = msgspec.structs.replace(
        machine.machine, links=(*machine.machine.links, veth), addressed_links=(index, 99)
    )
    record = gathered(RecordedMachine(links))
    assert [link.index for link in record.links] == [link.index for link in machine.machine.links]
    assert record.addressed_links == (index,)
    assert any("veth" in each for each in record.about.replaced)


def test_record_names_its_machine() -> None:
    about = gathered(recorded(next(path for path in MACHINES if path.stem == "e810"))).about
    assert about.machine == "ice 0000:18:00.0 with 4 VFs; ice 0000:18:00.1 with 0 VFs"
    assert about.source.startswith("recorded by k8s-rdma gather ")
    assert about.kernel


@pytest.fixture
def sysfs() -> RecordingSysfs:
    entries = {
        "class/net/eth0": SymbolicLink(f"/{HOME}/net/eth0"),
        "class/net/lo": SymbolicLink("/devices/virtual/net/lo"),
        "bus/pci/devices/0000:01:00.0": SymbolicLink(f"/{HOME}"),
        "bus/pci/devices/0000:02:00.0": SymbolicLink("/devices/pci0000:00/0000:02:00.0"),
        f"{HOME}/vendor": "0x8086",
        f"{HOME}/device": "0x10c9",
        f"{HOME}/net/eth0/speed": RefusedAnswer("EINVAL"),
        f"{HOME}/net/eth0/device": SymbolicLink(f"/{HOME}"),
        "devices/pci0000:00/0000:02:00.0/vendor": "0x1af4",
        "devices/virtual/net/lo/mtu": "65536",
    }
    return RecordingSysfs(RecordedMachine(Machine(about=None, sysfs=entries)).sysfs)  # type: ignore[arg-type]


def test_recording_notes_the_file_and_the_links_on_the_way(sysfs) -> None:
    assert sysfs.value("class/net/eth0/device/vendor") == "0x8086"
    assert sysfs.entries() == {
        "class/net/eth0": SymbolicLink(f"/{HOME}/net/eth0"),
        f"{HOME}/net/eth0/device": SymbolicLink(f"/{HOME}"),
        f"{HOME}/vendor": "0x8086",
    }


def test_recording_notes_refused_reads_and_not_absent_files(sysfs) -> None:
    assert sysfs.value("class/net/eth0/speed") is None
    assert sysfs.value_if_any("class/net/eth0/flags") is None
    assert sysfs.entries()[f"{HOME}/net/eth0/speed"] == RefusedAnswer("EINVAL")
    assert f"{HOME}/net/eth0/flags" not in sysfs.entries()


def test_recording_of_a_listing_leaves_out_unread_pci_devices(sysfs) -> None:
    assert len(sysfs.names("bus/pci/devices")) == 2
    sysfs.value("bus/pci/devices/0000:01:00.0/vendor")
    assert sysfs.entries() == {
        "bus/pci/devices/0000:01:00.0": SymbolicLink(f"/{HOME}"),
        f"{HOME}/vendor": "0x8086",
    }


def test_recording_of_a_pci_function_has_only_files_that_are_read(sysfs) -> None:
    assert "device" in sysfs.names(f"bus/pci/devices/{HOME.rpartition('/')[2]}")
    assert f"{HOME}/device" not in sysfs.entries()


def test_recording_cannot_be_written_through(sysfs) -> None:
    with pytest.raises(OSError, match="only read"):
        sysfs.write(f"{HOME}/sriov_numvfs", "4")


def test_recording_notes_a_refusal_and_returns_no_content() -> None:
    class Broken(RecordedQueries):
        """Queries that cannot list netdevs."""

        def links(self) -> Sequence[Link]:
            msg = "nothing is known"
            raise KernelError(msg)

    queries = RecordingQueries(Broken(recorded(MACHINES[0])))
    assert queries.links() == ()
    assert queries.refused() == {"links": "EIO"}
    assert (error_name(errno.EOPNOTSUPP), error_name(errno.EPERM)) == ("EOPNOTSUPP", "EPERM")
