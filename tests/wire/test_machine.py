"""Machine files: read, written, written out, and refused with the name of the mistake."""

from __future__ import annotations

import json

import msgspec
import pytest

from fakes.recorded_machine import read_machine
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.machine import (
    LinkEntry,
    RefusedAnswer,
    SymbolicLink,
    VfEntry,
    counted,
    decode_machine,
    encode_machine,
    encode_machine_json,
)

DOCUMENT = """\
format: 1
about: {machine: one port, source: written for this test, kernel: 6.1.0}
links:
- {index: 2, name: eth0, mac: '52:54:00:00:00:01', up: true, device: '0000:01:00.0'}
vfs:
  2:
  - {index: 0, mac: '52:54:00:00:01:00', spoof_check: true}
sysfs:
  class/net/eth0: !link /devices/pci0000:00/0000:01:00.0/net/eth0
  devices/pci0000:00/0000:01:00.0:
    vendor: 0x8086
    enabled: no
    uevent: |-
      DRIVER=igb
      PCI_CLASS=20000
    empty: ''
    net/eth0: {speed: !refused EINVAL}
    infiniband: {}
"""

REPEATED = """
repeated:
- count: 3
  with: {pf: '0000:01:00.0'}
  each: {n: 0, pci: '0000:01:1f.6', mac: '52:54:00:00:01:fe', index: 10}
  sysfs:
    devices/pci0000:00:
      $pci/vendor: 0x8086
      $pf/virtfn$n: !link /devices/pci0000:00/$pci
  links: [{index: $index, name: eth0v$n, mac: $mac}]
"""


def test_machine_is_read_as_text_links_and_refusals() -> None:
    machine = decode_machine(DOCUMENT)
    device = "devices/pci0000:00/0000:01:00.0"
    assert machine.sysfs == {
        "class/net/eth0": SymbolicLink(f"/{device}/net/eth0"),
        f"{device}/vendor": "0x8086",
        f"{device}/enabled": "no",
        f"{device}/uevent": "DRIVER=igb\nPCI_CLASS=20000",
        f"{device}/empty": "",
        f"{device}/net/eth0/speed": RefusedAnswer("EINVAL"),
        f"{device}/infiniband": None,
    }
    assert machine.links == (
        LinkEntry(index=2, name="eth0", mac="52:54:00:00:00:01", is_up=True, device="0000:01:00.0"),
    )
    assert machine.vfs == {2: (VfEntry(index=0, mac="52:54:00:00:01:00", spoof_check=True, trust=None),)}


def test_machine_that_is_written_reads_the_same() -> None:
    machine = decode_machine(DOCUMENT + REPEATED)
    assert decode_machine(encode_machine(machine)) == machine
    assert decode_machine(encode_machine_json(machine).decode()) == machine


def test_json_has_objects_for_links_and_refusals() -> None:
    tree = json.loads(encode_machine_json(decode_machine(DOCUMENT)))["sysfs"]
    assert tree["class/net"]["eth0"] == {"!link": "/devices/pci0000:00/0000:01:00.0/net/eth0"}
    assert tree["devices/pci0000:00/0000:01:00.0"]["net/eth0"]["speed"] == {"!refused": "EINVAL"}


def test_link_of_a_json_file_is_held_to_the_rules_of_links() -> None:
    text = encode_machine_json(decode_machine(DOCUMENT)).decode().replace('"!link": "/', '"!link": "../')
    with pytest.raises(MalformedError, match="!link: expected a path from the root of sysfs"):
        decode_machine(text)


@pytest.mark.parametrize(
    "text", ["no", "0x10", "21:10", "null", "~", "", "- a", "a: b", "#", "!link /x", "1\n\n2", " x"]
)
def test_text_of_a_file_is_kept_whatever_it_looks_like(text: str) -> None:
    machine = msgspec.structs.replace(decode_machine(DOCUMENT), sysfs={"devices/x": text})
    assert decode_machine(encode_machine(machine)).sysfs == {"devices/x": text}
    assert decode_machine(encode_machine_json(machine).decode()).sysfs == {"devices/x": text}


def test_tree_is_written_with_chains_of_directories_in_one_line() -> None:
    assert "  devices/pci0000:00/0000:01:00.0:\n    empty:" in encode_machine(decode_machine(DOCUMENT))


def test_repeated_block_is_written_out_for_each_function() -> None:
    machine = decode_machine(DOCUMENT + REPEATED)
    device = "devices/pci0000:00/0000:01:00.0"
    assert [machine.sysfs[f"{device}/virtfn{n}"] for n in range(3)] == [
        SymbolicLink("/devices/pci0000:00/0000:01:1f.6"),
        SymbolicLink("/devices/pci0000:00/0000:01:1f.7"),
        SymbolicLink("/devices/pci0000:00/0000:02:00.0"),
    ]
    assert machine.sysfs["devices/pci0000:00/0000:02:00.0/vendor"] == "0x8086"
    assert [(link.index, link.name, link.mac) for link in machine.links[1:]] == [
        (10, "eth0v0", "52:54:00:00:01:fe"),
        (11, "eth0v1", "52:54:00:00:01:ff"),
        (12, "eth0v2", "52:54:00:00:02:00"),
    ]


@pytest.mark.parametrize(
    ("first", "offset", "expected"),
    [
        ("7", 3, "10"),
        ("0000:04:00.2", 120, "0000:04:0f.2"),
        ("0001:ff:00.0", 0, "0001:ff:00.0"),
        ("00:ff", 1, "01:00"),
        ("b859:9f03:0000:ffff", 1, "b859:9f03:0001:0000"),
    ],
)
def test_counted_goes_up_as_numbers_of_its_kind_do(first: str, offset: int, expected: str) -> None:
    assert counted(first, offset) == expected


@pytest.mark.parametrize(
    ("was", "now", "words"),
    [
        ("format: 1", "format: 2", "format: expected 1, got 2"),
        ("format: 1\n", "", "format: expected 1, got None"),
        ("source: written for this test, ", "", "`source`"),
        ("index: 2", "index: two", "$.links[0].index"),
        ("index: 2, name", "index: 2, nam: x, name", "`nam`"),
        ("index: 0", "index: -1", "$.vfs[...][0].index"),
        ("!link /devices", "!link ../devices", "!link: expected a path from the root"),
        ("EINVAL", "EWHAT", "'EWHAT'"),
        ("vendor: 0x8086", "vendor: [1]", "sysfs.devices/pci0000:00/0000:01:00.0/vendor"),
        ("vendor: 0x8086", "a/../b: x", "'a/../b'"),
        ("empty: ''", "vendor: ''", "line 16, column 5: the key 'vendor' stands twice in one mapping"),
        ("empty: ''", "net/eth0/speed: ''", "net/eth0/speed: is given twice"),
        ("empty: ''", "net: ''", "net: is given twice"),
        ("sysfs:", "sysfs: [", "line 10"),
        ("count: 3", "count: three", "repeated[0]: Expected `int`"),
        ("count: 3", "counts: 3", "repeated[0]: "),
        ("index: $index", "index: $other", "$other: holds a name that is neither in"),
        ("n: 0", "n: first", "'first' is no number"),
        ("$pf/virtfn$n", "$pf/virtfn", "repeated[0]: 0000:01:00.0/virtfn: is given already"),
    ],
)
def test_wrong_document_is_refused_by_the_name_of_the_field(was: str, now: str, words: str) -> None:
    document = DOCUMENT + REPEATED
    assert was in document
    with pytest.raises(MalformedError) as refusal:
        decode_machine(document.replace(was, now, 1))
    assert words in str(refusal.value)


def test_document_of_another_kind_is_refused() -> None:
    with pytest.raises(MalformedError, match="expected a mapping of sections, got list"):
        decode_machine("[]")


def test_file_that_cannot_be_read_is_named(tmp_path) -> None:
    with pytest.raises(MalformedError, match=r"absent\.yaml"):
        read_machine(tmp_path / "absent.yaml")
