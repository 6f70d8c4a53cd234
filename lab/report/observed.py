"""Nodes and pods by a node's `/v1/node` and the runtime's records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lab.report.result import Interface, Node, Pf, Pod

if TYPE_CHECKING:
    from lab.report.node import Attached
    from lab.report.pods import Wanted


def node_of(report: dict[str, Any]) -> Node:
    """Return a node by its `/v1/node`."""
    held = [interface for each in report["allocations"] for interface in each["interfaces"]]
    return Node(
        name=report["node"],
        pfs=tuple(_pf(pf, [each for each in held if each["pf"] == pf["pci"]]) for pf in report["pfs"]),
    )


def _pf(shown: dict[str, Any], held: list[dict[str, Any]]) -> Pf:
    return Pf(
        name=shown["name"],
        driver=shown["driver"],
        link_mbps=shown["link_mbps"],
        vfs=shown["capacity_vfs"],
        taken_vfs=len(held),
        reserved_mbps=sum(each["min_tx_rate"] for each in held),
    )


def pod_of(wanted: Wanted, placed: dict[str, str], running: tuple[Attached, dict[str, Any]] | None) -> Pod:
    """Return a pod. running: its namespace and addresses, and its node's `/v1/node`."""
    if running is None:
        return Pod(name=wanted.name, wish=wanted.wish, refused=placed["refused"])
    attached, report = running
    names = {pf["pci"]: pf["name"] for pf in report["pfs"]}
    (held,) = [each["interfaces"] for each in report["allocations"] if each["pod"]["name"] == wanted.name]
    return Pod(
        name=wanted.name,
        wish=wanted.wish,
        node=report["node"],
        interfaces=tuple(_interface(each, names[each["pf"]], attached) for each in held),
    )


def _interface(shown: dict[str, Any], pf: str, attached: Attached) -> Interface:
    return Interface(
        name=shown["ifname"],
        address=attached.addresses[shown["ifname"]],
        pf=pf,
        vf=shown["vf"],
        min_tx_rate_mbps=shown["min_tx_rate"],
        max_tx_rate_mbps=shown["max_tx_rate"],
        enforced_min=shown["enforced"]["min"],
        enforced_max=shown["enforced"]["max"],
    )
