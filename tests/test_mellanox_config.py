from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from k8s_rdma.config.devices import SharedResource, SharedSelector, load_device_config, load_mellanox_config
from k8s_rdma.core.types import LinkType
from k8s_rdma.deviceplugin.modes import CountedDevices
from k8s_rdma.errors import MalformedError

if TYPE_CHECKING:
    from pathlib import Path

ENTRY: dict[str, Any] = {"resourceName": "hca", "rdmaHcaMax": 10, "selectors": {"vendors": ["15b3"]}}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.json"


def load(file: Path, document: object, **changes: Any) -> Any:
    file.write_text(json.dumps(document, indent="\t"))  # which is no YAML
    return load_device_config(str(file), changes)


def test_whole_file_is_read_as_shared_resources_whichever_option_names_it(file: Path) -> None:
    selectors = {
        "vendors": ["15B3"],
        "deviceIDs": ["101D"],
        "drivers": ["mlx5_core"],
        "ifNames": ["ib0"],
        "linkTypes": ["ether", "infiniband"],
    }
    document = {
        "periodicUpdateInterval": 300,
        "configList": [
            {
                "resourceName": "a",
                "resourcePrefix": "example.com",
                "rdmaHcaMax": 1000,
                "selectors": selectors,
            },
            {"resourceName": "b", "rdmaHcaMax": 5, "devices": ["ib1", "ib2"]},
        ],
    }
    read = load(file, document, node="w1")
    assert read == load_mellanox_config(str(file), {"node": "w1"}, cdi=False)
    assert read.ignored == ()
    assert (read.config.rescan_s, read.config.node) == (300, "w1")
    select = SharedSelector(
        vendors=("15b3",),
        device_ids=("101d",),
        drivers=("mlx5_core",),
        if_names=("ib0",),
        link_types=(LinkType.ETHERNET, LinkType.INFINIBAND),
    )
    assert read.config.resources == (
        SharedResource(name="example.com/a", count=1000, max_per_container=1000, select=select),
        SharedResource(
            name="rdma/b", count=5, max_per_container=5, select=SharedSelector(if_names=("ib1", "ib2"))
        ),
    )


@pytest.mark.parametrize("most", [1, 63, 1000])
def test_container_may_have_all_shares_as_pods_of_that_program_ask(file: Path, most: int) -> None:
    """Public pods ask for `rdma/hca: 1k`; that program has no limit for a container."""
    [resource] = load(file, {"configList": [{**ENTRY, "rdmaHcaMax": most}]}).config.resources
    shares = CountedDevices(resource.name, resource.count, resource.max_per_container)
    shares.check_ids([device.id for device in shares.offer("")], "")


def test_resource_without_shares_is_read(file: Path) -> None:
    [resource] = load(file, {"configList": [{**ENTRY, "rdmaHcaMax": 0}]}).config.resources
    assert resource.count == 0


def test_use_cdi_is_for_all_its_resources(file: Path) -> None:
    load(file, {"configList": [ENTRY, {**ENTRY, "resourceName": "other"}]})
    for read in (
        load_mellanox_config(str(file), {}, cdi=True),
        load_device_config(str(file), {}, cdi=True),
    ):
        assert all(each.cdi for each in read.config.resources)


@pytest.mark.parametrize(("interval", "rescan_s"), [({}, 60), ({"periodicUpdateInterval": None}, 60)])
def test_missing_interval_is_a_minute(file: Path, interval: dict[str, Any], rescan_s: float) -> None:
    assert load(file, {**interval, "configList": [ENTRY]}).config.rescan_s == rescan_s


def test_interval_of_0_is_never(file: Path) -> None:
    assert load(file, {"periodicUpdateInterval": 0, "configList": [ENTRY]}).config.rescan_s == 0


def test_keys_are_read_as_go_reads_them(file: Path) -> None:
    entry = {
        "RESOURCENAME": "hca",
        "rdmahcamax": 3,
        "Selectors": {"IFNAMES": ["ib0"]},
        "devices": None,
        "x": 1,
    }
    read = load(file, {"configlist": [entry], "mode": "hca"})
    assert read.config.resources == (
        SharedResource(
            name="rdma/hca", count=3, max_per_container=3, select=SharedSelector(if_names=("ib0",))
        ),
    )
    assert read.ignored == ("configlist[0].x", "mode")


@pytest.mark.parametrize(
    ("names", "left", "ignored"),
    [
        (["ens1f0", "ens*"], ("ens1f0",), [1]),
        (["ib0", ""], ("ib0",), [1]),
        (["averyveryverylongname0", "a b"], (".",), [0, 1]),  # no netdev's name; no names would select all
        (["ib0"], ("ib0",), []),
    ],
)
def test_name_without_a_netdev_is_ignored_and_selects_no_pf(
    file: Path, names: list[str], left: tuple[str, ...], ignored: list[int]
) -> None:
    entry = {"resourceName": "hca", "rdmaHcaMax": 3}
    for key, more in (
        ("devices", {"devices": names}),
        ("selectors.ifNames", {"selectors": {"ifNames": names}}),
    ):
        read = load(file, {"configList": [{**entry, **more}]})
        assert read.config.resources[0].select == SharedSelector(if_names=left)
        assert read.ignored == tuple(f"configList[0].{key}[{index}]" for index in ignored)


def test_selectors_without_names_select_devices_of_any(file: Path) -> None:
    assert load(file, {"configList": [ENTRY]}).config.resources[0].select.if_names == ()


def test_resource_without_a_number_has_no_shares(file: Path) -> None:
    entry = {"resourceName": "hca", "devices": ["ib0"]}
    assert load(file, {"configList": [entry]}).config.resources[0].count == 0


@pytest.mark.parametrize(
    ("document", "named"),
    [
        ({"configList": []}, "configList"),
        ({"configList": {}}, "configList"),
        ({"configList": [ENTRY], "periodicUpdateInterval": -1}, "periodicUpdateInterval"),
        ({"configList": [ENTRY], "periodicUpdateInterval": "60"}, "periodicUpdateInterval"),
        ({"configList": [ENTRY, ENTRY]}, r"configList\[1\].resourceName: rdma/hca"),
        ({"configList": [{**ENTRY, "resourceName": ""}]}, r"configList\[0\].resourceName"),
        ({"configList": [{**ENTRY, "resourceName": "a b"}]}, r"configList\[0\].resourceName: 'a b'"),
        ({"configList": [{**ENTRY, "resourceName": 1}]}, r"configList\[0\].resourceName"),
        ({"configList": [{**ENTRY, "resourcePrefix": "a_b"}]}, r"configList\[0\].resourcePrefix: 'a_b'"),
        ({"configList": [{**ENTRY, "resourcePrefix": "a..b"}]}, r"configList\[0\].resourcePrefix: 'a..b'"),
        (
            {"configList": [{**ENTRY, "resourcePrefix": "kubernetes.io"}]},
            r"configList\[0\].resourcePrefix: 'kubernetes.io'",
        ),
        ({"configList": [{**ENTRY, "rdmaHcaMax": -1}]}, r"configList\[0\].rdmaHcaMax: -1"),
        ({"configList": [{**ENTRY, "rdmaHcaMax": 100_001}]}, r"configList\[0\].rdmaHcaMax: 100001"),
        ({"configList": [{**ENTRY, "rdmaHcaMax": "10"}]}, r"configList\[0\].rdmaHcaMax"),
        ({"configList": [{**ENTRY, "selectors": {}}]}, r"configList\[0\]: has neither selectors nor devices"),
        ({"configList": [{**ENTRY, "devices": ["ib0"]}]}, r"configList\[0\]: has both selectors and devices"),
        ({"configList": [{**ENTRY, "devices": "ib0"}]}, r"configList\[0\].devices"),
        (
            {"configList": [{**ENTRY, "selectors": {"vendors": ["15b3", "mlx"]}}]},
            r"configList\[0\].selectors.vendors\[1\]: 'mlx'",
        ),
        (
            {"configList": [{**ENTRY, "selectors": {"linkTypes": ["ib"]}}]},
            r"configList\[0\].selectors.linkTypes\[0\]: 'ib'; wanted ether or infiniband",
        ),
        (
            {"configList": [{**ENTRY, "selectors": {"ifNames": [1]}}]},
            r"configList\[0\].selectors.ifNames\[0\]",
        ),
    ],
)
def test_mistake_is_refused_by_file_and_field(file: Path, document: object, named: str) -> None:
    with pytest.raises(MalformedError, match=f"config.json: .*{named}"):
        load(file, document)


@pytest.mark.parametrize("text", ["", "[]", "{", "configList: []", "null", "3"])
def test_option_of_that_program_takes_no_other_file(file: Path, text: str) -> None:
    file.write_text(text)
    with pytest.raises(MalformedError, match=r"config\.json"):
        load_mellanox_config(str(file), {}, cdi=False)


def test_missing_file_is_named(file: Path) -> None:
    for load_it in (
        lambda: load_mellanox_config(str(file), {}, cdi=False),
        lambda: load_device_config(str(file), {}),
    ):
        with pytest.raises(MalformedError, match=r"config\.json: No such file"):
            load_it()


def test_other_files_are_the_device_plugins_own(file: Path) -> None:
    file.write_text("resources:\n- mode: shared\n  name: a/b\n  count: 1\n")
    assert load_device_config(str(file), {}).config.resource_names() == ("a/b",)
    file.write_text(json.dumps({"resources": [{"mode": "mount"}]}))
    assert load_device_config(str(file), {}).config.resource_names() == ("rdma-sriov/dev-infiniband-mount",)
    file.write_text(json.dumps({"resources": [], "confList": []}))
    with pytest.raises(MalformedError, match="confList"):
        load_device_config(str(file), {})
