"""The section `hardware`: rules for PFs, and the PFs that no rule matches."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from k8s_rdma.config.hardware import HardwareConfig, is_netdev_name
from k8s_rdma.core.pf_selection import ClaimsPart, PfRule, Selection
from k8s_rdma.core.types import Enforce, LinkType, PciAddress, PfUse


def section(**keys: Any) -> HardwareConfig:
    return msgspec.convert(keys, HardwareConfig)


def test_rule_has_all_of_its_keys():
    rule = {
        "names": ["enp1s0f0"],
        "pcis": ["03:00.0"],
        "vendors": ["15b3", "15b3:1017"],
        "drivers": ["ice"],
        "linkTypes": ["infiniband"],
        "numVfs": 8,
        "enforce": "hardware",
        "trust": True,
        "mtu": 9000,
        "claims": {"vfs": 8, "mbps": 1000},
    }
    found = section(requireRdma=False, unsafeNoiommu=True, pfs=[rule, {"use": "claims"}]).to_core()
    assert found == Selection(
        require_rdma=False,
        unsafe_noiommu=True,
        rules=(
            PfRule(
                names=frozenset({"enp1s0f0"}),
                pcis=frozenset({PciAddress("0000:03:00.0")}),
                vendors=frozenset({"15b3", "15b3:1017"}),
                drivers=frozenset({"ice"}),
                link_types=frozenset({LinkType.INFINIBAND}),
                num_vfs=8,
                enforce=Enforce.HARDWARE,
                trust=True,
                mtu=9000,
                claims=ClaimsPart(vfs=8, mbps=1000),
            ),
            PfRule(use=PfUse.CLAIMS),
        ),
    )


@pytest.mark.parametrize(
    ("keys", "rules"),
    [
        ({}, (PfRule(),)),
        ({"all": False}, ()),
        ({"pfs": [{"trust": True}]}, (PfRule(trust=True),)),
        ({"pfs": [{"trust": True}], "all": True}, (PfRule(trust=True), PfRule())),
    ],
    ids=["no-rules", "no-pf", "rules-alone", "rules-first"],
)
def test_pfs_that_no_rule_matches_are_used_without_rules_or_if_all_are(
    keys: dict[str, Any], rules: tuple[PfRule, ...]
):
    assert section(**keys).to_core().rules == rules


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"pfs": []}, "pfs: is empty"),
        ({"pfs": [{"use": "claims", "claims": {"vfs": 1, "mbps": 1}}]}, "leave one out"),
        ({"pfs": [{"numVfs": 3, "claims": {"vfs": 4, "mbps": 1}}]}, "claims.vfs: 4 is more than numVfs, 3"),
        ({"pfs": [{"claims": {"vfs": 0, "mbps": 1}}]}, "vfs"),
        ({"pfs": [{"names": ["enp*"]}]}, "names"),
        ({"pfs": [{"pcis": ["0000:03"]}]}, "pcis"),
        ({"pfs": [{"vendors": ["15B3"]}]}, "vendors"),
        ({"pfs": [{"mtu": 67}]}, "mtu"),
        ({"pfs": [{"numVfs": -1}]}, "numVfs"),
        ({"pfs": [{"num_vfs": 1}]}, "num_vfs"),
    ],
)
def test_rule_that_selects_or_makes_nothing_is_refused(keys: dict[str, Any], why: str):
    with pytest.raises(msgspec.ValidationError, match=why):
        section(**keys)


@pytest.mark.parametrize(
    ("name", "holds"),
    [("enp1s0f0", True), ("x" * 15, True), ("x" * 16, False), ("", False), ("a b", False), ("enp?", False)],
)
def test_netdev_name_is_whole_and_as_the_kernel_has_it(name: str, *, holds: bool):
    assert is_netdev_name(name) is holds
