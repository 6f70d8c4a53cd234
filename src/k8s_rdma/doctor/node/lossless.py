"""Checks of lossless Ethernet for RoCE: PFC, pause frames, trust and ECN at this end of the cable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.doctor.subject import Subject

if TYPE_CHECKING:
    from collections.abc import Iterator

    from k8s_rdma.doctor.finding import Finding


LOSSLESS = Subject(
    "lossless",
    "Lossless Ethernet",
    "For PFs with RoCE. Not seen: the switch, PFC that LLDP or firmware set without the driver, ECN "
    "without MLNX_OFED.",
)
PFC_ON = LOSSLESS.ok("pfc")
ECN_ON = LOSSLESS.ok("ecn")
NOTHING = LOSSLESS.ok("not-needed")
NO_FLOW_CONTROL = LOSSLESS.warning("no-flow-control")
GLOBAL_PAUSE = LOSSLESS.note("global-pause")
TRUST_PCP = LOSSLESS.note("trust-pcp")
ECN_OFF = LOSSLESS.warning("ecn-off")
NOT_KNOWN = LOSSLESS.note("not-known")


@dataclass(frozen=True, slots=True, kw_only=True)
class PortQos:
    """Settings of a PF's port; each is absent if the driver does not report it.

    roce: whether it is Ethernet with an RDMA device.
    pfc: priorities with PFC.
    trust: `dscp` or `pcp`.
    pause: whether it sends or heeds pause frames for the whole link.
    ecn: priorities for which RoCE heeds congestion marks (MLNX_OFED's files).
    """

    name: str
    roce: bool
    pfc: tuple[int, ...] | None = None
    trust: str | None = None
    pause: bool | None = None
    ecn: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LosslessFacts:
    """The PFs that are ours."""

    ports: tuple[PortQos, ...]


@LOSSLESS.check(LosslessFacts)
def check_lossless(facts: LosslessFacts) -> Iterator[Finding]:
    """Check each port; one finding says that the switch cannot be checked."""
    roce = [port for port in facts.ports if port.roce]
    if not roce:
        yield NOTHING("no PF speaks RoCE, and only that needs it", source="RDMA netlink")
        return
    for port in roce:
        yield from _check(port)
    yield NOT_KNOWN(
        "the switch's side is not seen from here: PFC on the same priorities, ECN thresholds, trust, and "
        "enough buffer; nor is the traffic class that programs choose",
        about=", ".join(port.name for port in roce),
        source="",
        expected="the same on both ends of every cable",
        fix="compare with the switch; lldptool -ti DEV or dcb pfc show dev DEV shows this end",
    )


def _check(port: PortQos) -> Iterator[Finding]:
    yield _flow_control(port)
    if port.pfc and port.trust == "pcp":
        yield TRUST_PCP(
            "priorities come from VLAN tags: untagged frames have priority 0",
            about=port.name,
            source="DCB netlink; class/net/*/qos/trust",
            expected="dscp, unless RoCE's interfaces have a VLAN",
            fix=f"mlnx_qos -i {port.name} --trust dscp, or dcb app add dev {port.name} dscp-prio 26:3",
        )
    if port.ecn is None:
        yield NOT_KNOWN(
            "only MLNX_OFED's files or vendors' tools show whether RoCE uses congestion marks (ECN)",
            about=port.name,
            source=f"no /sys/class/net/{port.name}/ecn",
        )
    elif port.ecn:
        yield ECN_ON(
            f"RoCE heeds congestion marks on {_priorities(port.ecn)}", about=port.name, source=_ecn(port)
        )
    else:
        yield ECN_OFF(
            "RoCE ignores ECN marks: congestion causes pause frames or losses",
            about=port.name,
            source=_ecn(port),
            expected="1 for the priority of RoCE",
            fix=f"echo 1 > /sys/class/net/{port.name}/ecn/roce_np/enable/3; the same in roce_rp",
        )


def _flow_control(port: PortQos) -> Finding:
    dcb, pause = f"dcb pfc show dev {port.name}", f"ethtool -a {port.name}"
    if port.pfc:
        trust = f", trust {port.trust}" if port.trust else ", trust unknown"
        return PFC_ON(f"PFC on {_priorities(port.pfc)}{trust}", about=port.name, source=dcb)
    if port.pause:
        return GLOBAL_PAUSE(
            "pause frames for the whole link, no PFC: one slow receiver stops all traffic",
            about=port.name,
            source=f"{dcb}; {pause}",
            expected="PFC on the priority of RoCE",
            fix=f"dcb pfc set dev {port.name} prio-pfc 3:on",
        )
    if port.pfc is None and port.pause is None:
        return NOT_KNOWN(
            "the driver reports neither PFC nor pause frames", about=port.name, source=f"{dcb}; {pause}"
        )
    pfc = "PFC is off" if port.pfc is not None else "the driver does not report PFC"
    return NO_FLOW_CONTROL(
        f"{pfc}, without pause frames: RoCE loses frames under load",
        about=port.name,
        source=f"{dcb}; {pause}",
        expected="PFC on the priority of RoCE, here and on the switch",
        fix=f"dcb pfc set dev {port.name} prio-pfc 3:on (mlnx_qos -i {port.name} --pfc 0,0,0,1,0,0,0,0)",
    )


def _priorities(priorities: tuple[int, ...]) -> str:
    return ("priority " if len(priorities) == 1 else "priorities ") + ", ".join(map(str, priorities))


def _ecn(port: PortQos) -> str:
    return f"/sys/class/net/{port.name}/ecn/roce_np/enable"
