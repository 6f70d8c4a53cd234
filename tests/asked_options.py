"""Options that an annotation can ask for."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from k8s_rdma.core.options import InterfaceOptions
from k8s_rdma.core.types import LinkState, LinkType, PfSelector, VfDriver, VlanProto, pci_address

NAMES = st.from_regex(r"[a-zA-Z0-9][a-zA-Z0-9_.\-]{0,14}", fullmatch=True).filter(
    lambda name: name not in ("lo", "all", "default")
)
SELECTORS = st.builds(
    PfSelector,
    names=st.frozensets(NAMES, max_size=3),
    pcis=st.frozensets(st.sampled_from([pci_address(f"41:00.{at}") for at in range(8)]), max_size=3),
    vendors=st.frozensets(st.sampled_from(["15b3", "8086:1572"]), max_size=2),
    drivers=st.frozensets(st.sampled_from(["mlx5_core", "ice"]), max_size=2),
).filter(lambda selector: selector != PfSelector())
OCTETS = st.binary(min_size=3, max_size=3).map(lambda octets: "02:00:01:" + octets.hex(":"))


@st.composite
def drawn_options(draw: st.DrawFn) -> InterfaceOptions:
    """Options that an annotation can ask for."""
    options = InterfaceOptions(
        name=draw(st.just("") | NAMES),
        pf=draw(st.none() | SELECTORS),
        link_state=draw(st.none() | st.sampled_from(LinkState)),
    )
    if draw(st.booleans()):
        return replace(
            options,
            link_type=draw(st.none() | st.just(LinkType.INFINIBAND)),
            guid=draw(st.none() | OCTETS.map(lambda mac: mac + ":00:01")),
            pkey=draw(st.none() | st.integers(1, 0x7FFF) | st.integers(0x8001, 0xFFFF)),
            driver=draw(st.sampled_from(VfDriver)),
        )
    vlan = draw(st.none() | st.integers(0, 4094))
    options = replace(
        options,
        link_type=draw(st.none() | st.just(LinkType.ETHERNET)),
        vlan=vlan,
        qos=None if vlan is None else draw(st.none() | st.integers(0, 7)),
        vlan_proto=draw(st.none() | st.sampled_from(VlanProto)) if vlan else None,
        mac=draw(st.none() | OCTETS),
        trust=draw(st.none() | st.booleans()),
        spoof_check=draw(st.none() | st.booleans()),
    )
    if draw(st.booleans()):
        return replace(options, driver=VfDriver.VFIO_PCI)
    mtu = draw(st.none() | st.integers(68, 65_535))
    return replace(options, mtu=mtu, network=draw(st.just("") | NAMES))
