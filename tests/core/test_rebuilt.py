"""The interface that is assumed for a lost receipt."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from factories import PF0, pf_state, vf
from k8s_rdma.agent.rebuild_ledger import ObservedInterface, rebuilt_interface
from k8s_rdma.core.options import InterfaceOptions
from k8s_rdma.core.rate_ability import EVERY_RATE, NO_RATE, RateAbility
from k8s_rdma.core.request import InterfaceRequest
from k8s_rdma.core.step import VfConfig, VfHome, VfRate, Vlan
from k8s_rdma.core.types import Enforce, VfDriver

if TYPE_CHECKING:
    from k8s_rdma.core.kernel import Vf
    from k8s_rdma.core.ledger import AllocatedInterface

AWAY = vf(PF0, 3, netdev=None, mac="00:00:00:00:00:00", driver="mlx5_core")


def rebuilt(
    away: Vf = AWAY, asked: InterfaceRequest | None = None, *, capped: int = 0, **pf: object
) -> AllocatedInterface:
    free = [vf(PF0, index, mtu=9000, trust="ON", spoof_check="ON", driver="mlx5_core") for index in range(3)]
    state = replace(pf_state(PF0), **{"name": "enp3s0f0", "vfs": (*free, away)} | pf)
    found = ObservedInterface(
        pf=state, vf=away, ifname="rdma0", mac="0a:00:00:00:00:99", max_tx_rate_mbps=capped
    )
    return rebuilt_interface(found, 2, asked)


def test_vf_is_called_after_its_pf_and_like_its_free_neighbours_at_home() -> None:
    made = rebuilt()
    assert made.home == VfHome(name="enp3s0f0v3", mac="0a:00:00:00:00:99", mtu=9000)
    assert (made.vf.index, made.pci, made.ifname, made.entry) == (3, AWAY.pci, "rdma0", 2)


def test_vf_whose_pf_has_too_long_a_name_is_called_after_its_pci_address() -> None:
    assert rebuilt(name="enp130s0f0np00").home.name == "vf" + "".join(filter(str.isalnum, AWAY.pci))


@pytest.mark.parametrize(
    ("admin", "options", "mac"),
    [
        ("0a:00:00:00:00:03", InterfaceOptions(), "0a:00:00:00:00:03"),
        ("00:00:00:00:00:00", InterfaceOptions(), "0a:00:00:00:00:99"),
        ("0a:00:00:00:00:99", InterfaceOptions(mac="0a:00:00:00:00:99"), "0a:00:00:00:00:99"),
    ],
)
def test_vf_has_at_home_the_mac_that_its_pf_has_for_it(
    admin: str, options: InterfaceOptions, mac: str
) -> None:
    assert rebuilt(replace(AWAY, admin_mac=admin), InterfaceRequest(options=options)).home.mac == mac


def test_settings_that_free_neighbours_do_not_have_are_taken_back() -> None:
    tuned = replace(AWAY, vlan=7, qos=2, vlan_proto="802.1Q", trust="OFF", spoof_check="ON")
    made = rebuilt(tuned)
    assert made.config == VfConfig(index=3, vlan=Vlan(7, 2), trust=False)
    assert made.previous == VfConfig(index=3, vlan=Vlan(0), trust=True)


def test_settings_are_reset_to_those_of_new_vfs_if_no_neighbour_is_free() -> None:
    tuned = replace(AWAY, vlan=7, qos=2, vlan_proto="802.1Q", trust="ON", spoof_check="ON")
    made = rebuilt(tuned, vfs=(tuned,))
    assert made.previous == VfConfig(index=3, vlan=Vlan(0), trust=False)
    assert made.config is not None


def test_rates_are_those_programmed_and_requested_rates_count_if_they_are_known() -> None:
    rated = replace(AWAY, min_tx_rate_mbps=200, max_tx_rate_mbps=400)
    assert rebuilt(rated).placed().min_tx_rate_mbps == 200
    made = rebuilt(rated, InterfaceRequest(min_tx_rate_mbps=150, max_tx_rate_mbps=350))
    assert (made.min_tx_rate_mbps, made.max_tx_rate_mbps) == (150, 350)
    assert made.rate() == VfRate(3, 200, 400)


CAP = InterfaceRequest(max_tx_rate_mbps=350)
BY_SOFTWARE = replace(CAP, enforce=Enforce.SOFTWARE)


@pytest.mark.parametrize(
    ("asked", "found", "rates", "link_mbps", "expected"),
    [
        pytest.param(CAP, 350, NO_RATE, 10_000, 350, id="as it is"),
        pytest.param(CAP, 349, EVERY_RATE, 10_000, 350, id="as asked for, not as the kernel rounds it"),
        pytest.param(CAP, 0, NO_RATE, 10_000, 350, id="taken away in the pod"),
        pytest.param(BY_SOFTWARE, 0, EVERY_RATE, 100, 350, id="taken away, demanded"),
        pytest.param(CAP, 0, NO_RATE, 100, 0, id="the link holds it"),
        pytest.param(replace(CAP, max_tx_rate_mbps=0), 0, NO_RATE, 10_000, 0, id="none asked for"),
        pytest.param(None, 350, NO_RATE, 10_000, 350, id="what was asked for is not known"),
        pytest.param(None, 0, NO_RATE, 10_000, 0, id="nothing is known, and none is there"),
    ],
)
def test_software_cap_is_the_requested_one_or_the_found_one_if_that_is_unknown(
    asked: InterfaceRequest | None, found: int, rates: RateAbility, link_mbps: int, expected: int
) -> None:
    made = rebuilt(AWAY, asked, capped=found, rates=rates, link_mbps=link_mbps)
    assert made.software_max_tx_rate_mbps == expected
    assert made.max_tx_rate_mbps == (asked.max_tx_rate_mbps if asked else expected)
    assert made.rate() == VfRate(3)


def test_software_cap_is_none_if_the_vf_has_a_cap_or_a_program_drives_it() -> None:
    assert rebuilt(replace(AWAY, max_tx_rate_mbps=350), CAP, rates=NO_RATE).software_max_tx_rate_mbps == 0
    programs = replace(AWAY, driver="vfio-pci")
    assert rebuilt(programs, CAP, rates=NO_RATE).software_max_tx_rate_mbps == 0


@pytest.mark.parametrize(
    "asked", [None, InterfaceRequest(options=InterfaceOptions(driver=VfDriver.VFIO_PCI))], ids=repr
)
def test_function_that_a_program_has_goes_back_to_the_driver_of_its_neighbours(
    asked: InterfaceRequest | None,
) -> None:
    made = rebuilt(replace(AWAY, driver="vfio-pci"), asked)
    assert (made.kernel_driver, made.is_netdev) == ("mlx5_core", False)
