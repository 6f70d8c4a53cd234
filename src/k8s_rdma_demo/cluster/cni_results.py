"""Results of CNI plugins: their versions, and the pod's addresses in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from k8s_rdma_demo.cluster.objects import JsonObject

_IP_TELLS_VERSION = ("0.3.0", "0.3.1", "0.4.0")


def result_in_version(result: JsonObject, version: str) -> JsonObject:
    """A plugin's result as another version of the specification has it; empty fields are left out.

    Up to 0.4.0 an address tells its IP version and `dns` is always there (source: `types/040`, `types/100`).
    """
    converted = {name: value for name, value in result.items() if value} | {"cniVersion": version}
    old = version in _IP_TELLS_VERSION
    if result.get("ips"):
        converted["ips"] = [_address(ip, old=old) for ip in result["ips"]]
    if old:
        converted.setdefault("dns", {})
    return converted


def pod_ips(result: JsonObject, ifname: str) -> list[str]:
    """The addresses, without prefix length, of the pod's own interface (containerd: `selectPodIPs`).

    An address that names no interface of the result counts as this one's.
    """
    interfaces = result.get("interfaces") or []
    found = []
    for ip in result.get("ips") or []:
        index = ip.get("interface")
        named = interfaces[index]["name"] if index is not None and 0 <= index < len(interfaces) else ifname
        if named == ifname:
            found.append(str(ip["address"]).partition("/")[0])
    return found


def _address(ip: JsonObject, *, old: bool) -> JsonObject:
    fields = {name: value for name, value in ip.items() if name != "version"}
    return {**fields, "version": "6" if ":" in str(ip.get("address")) else "4"} if old else fields
