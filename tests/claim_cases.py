"""ResourceClaims that policies take and refuse: the same for CEL's own library and for a real API server."""

from __future__ import annotations

from typing import Any

from asked_annotations import VALUES
from k8s_rdma.wire.claims import DRIVER
from k8s_rdma.wire.resource_claim import CONFIG_KEYS

Json = dict[str, Any]
HEAD: Json = {"apiVersion": "k8s-rdma.io/v1", "kind": "InterfaceConfig"}
WHOLE = "wanted whole Mb/s from 0 to 10T, such as 25G or 1500M"


def request(name: str = "a", bandwidth: str | None = None, **exact: Any) -> Json:
    """A request for an interface."""
    capacity = {"capacity": {"requests": {"bandwidth": bandwidth}}} if bandwidth is not None else {}
    return {"name": name, "exactly": {"deviceClassName": "rdma", **capacity, **exact}}


def capacities(**requests: str) -> Json:
    return request(capacity={"requests": requests})


def config(*requests: str, **parameters: Any) -> Json:
    """Parameters for these requests; without any, for all."""
    opaque = {"driver": DRIVER, "parameters": {**HEAD, **parameters}}
    return {**({"requests": list(requests)} if requests else {}), "opaque": opaque}


def devices(*requests: Json, configs: tuple[Json, ...] = ()) -> Json:
    return {"requests": list(requests or (request(),)), **({"config": list(configs)} if configs else {})}


def container(name: str, interfaces: int = 0, **more: Any) -> Json:
    """A container that requests interfaces as extended resources of the DeviceClass `rdma`."""
    resource = {"deviceclass.resource.kubernetes.io/rdma": str(interfaces)} if interfaces else {}
    amounts = {"cpu": "1m", **resource}
    return {"name": name, "image": "i", "resources": {"limits": amounts, "requests": amounts}, **more}


def template(found: Json, name: str = "t") -> Json:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"spec": {"devices": found}},
    }


def claim(found: Json, name: str = "c") -> Json:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": found},
    }


def _alternatives(*amounts: str) -> Json:
    found = [
        {"name": f"s{index}", "deviceClassName": "rdma", "capacity": {"requests": {"bandwidth": amount}}}
        for index, amount in enumerate(amounts)
    ]
    return {"name": "a", "firstAvailable": found}


_BESIDE: Json = {"qos": {"vlan": 5}, "vlan_proto": {"vlan": 5}}
_RATES: tuple[Any, ...] = (
    "0",
    "40G",
    "1500M",
    "0.5G",
    "1e9",
    "15625Ki",
    "4294967295M",
    0,
    40_000_000_000,
    4e10,
)
_SPELLED = {key: name for name, key in CONFIG_KEYS.items()} | {"enforce": "enforce"}

GOOD: list[Json] = [
    devices(),
    *(devices(request(bandwidth=amount)) for amount in ("0", "1M", "25G", "1500M", "10T", "15625Ki")),
    devices(capacities(bandwidth="25G", vfs="1")),
    devices(_alternatives("50G", "25G"), configs=(config("a/s1", maxTxRate="25G"),)),
    devices(request(bandwidth="25G"), configs=(config("a", maxTxRate="25G"),)),
    devices(request(bandwidth="25G"), configs=(config(maxTxRate="0"),)),
    devices(request(bandwidth="25G"), request("b"), configs=(config("b", maxTxRate="1G"),)),
    *(devices(configs=(config(maxTxRate=rate),)) for rate in _RATES),
    *(
        devices(configs=(config(**{_SPELLED[key]: value, **_BESIDE.get(key, {})}),))
        for key, (good, _) in VALUES.items()
        if key in _SPELLED
        for value in good
    ),
    devices(configs=(config(driver="vfio-pci", vlan=7, enforce="hardware"),)),
    devices(request(deviceClassName="gpu", capacity={"requests": {"memory": "10Gi"}})),
    {"requests": [request()], "config": [{"opaque": {"driver": "gpu.example.com", "parameters": {"a": 1}}}]},
    {},
]
"""`spec.devices` that are taken."""

BAD: list[tuple[Json, str]] = [
    *(
        (devices(request(bandwidth=amount)), WHOLE)  # the API server writes 9300P of the fourth
        for amount in (
            "-10G",
            "-1",
            "9223372036854775807",
            "9300000000000000000",
            "11T",
            "1500m",
            "1",
            "25Gi",
        )
    ),
    (
        devices(capacities(bandwith="25G")),
        "request a: no PF has the capacity bandwith; write bandwidth, in bits per second such as 25G",
    ),
    (devices(capacities(vfs="2")), "request a: vfs 2: an interface is one VF; leave vfs out"),
    (devices(_alternatives("25G", "-1")), f"request a/s1: bandwidth -1: {WHOLE}"),
    (devices(request(), request("b", "-1")), f"request b: bandwidth -1: {WHOLE}"),
    (
        devices(configs=(config(max_tx_rate="40G"),)),
        "parameters of rdma.k8s-rdma.io: max_tx_rate: unknown key",
    ),
    (devices(configs=(config(minTxRate="40G"),)), "minTxRate: unknown key; known are apiVersion, kind"),
    (devices(configs=(config(vlan=4095),)), "vlan: wanted a whole number from 0 to 4094"),
    (devices(configs=(config(), config(vlan=4095))), "vlan: wanted a whole number from 0 to 4094"),
    (devices(configs=(config(apiVersion="v1"),)), "apiVersion: wanted k8s-rdma.io/v1"),
    (devices(configs=(config(kind="Interface"),)), "kind: wanted InterfaceConfig"),
    *(
        (devices(configs=(config(maxTxRate=rate),)), "maxTxRate: wanted bits per second in whole Mb/s")
        for rate in ("-1G", "1", "fast", "", "1500m", "5000T", 1, -1_000_000, True, [], {})
    ),
    (
        devices(request(bandwidth="25G"), configs=(config("a", maxTxRate="24999M"),)),
        "request a: bandwidth 25G is above its maxTxRate",
    ),
    (
        devices(request(bandwidth="25G"), configs=(config(maxTxRate=1_000_000),)),
        "request a: bandwidth 25G is above its maxTxRate",
    ),
    (
        devices(_alternatives("50G", "25G"), configs=(config("a", maxTxRate="40G"),)),
        "request a/s0: bandwidth 50G is above its maxTxRate",
    ),
    *(
        (devices(configs=(config(**{_SPELLED[key]: value, **_BESIDE.get(key, {})}),)), f"{_SPELLED[key]}: ")
        for key, (_, bad) in VALUES.items()
        if key in _SPELLED
        for value in bad
    ),
    (devices(configs=(config(qos=1),)), "qos: is of a VLAN, and there is no vlan"),
    (devices(configs=(config(vlanProto="802.1q"),)), "vlanProto: is of a tag"),
    (devices(configs=(config(vlan=0, vlanProto="802.1q"),)), "vlanProto: is of a tag"),
    (devices(configs=(config(vlan=1, pkey="0x8001"),)), "guid and pkey are of InfiniBand"),
    (
        devices(configs=(config(driver="vfio-pci", mtu=9000),)),
        "driver: with vfio-pci there is no network device",
    ),
    (devices(configs=(config(driver="vfio-pci", network="a"),)), "driver: with vfio-pci there is no"),
    (devices(configs=(config(driver="vfio-pci", enforce="software"),)), "driver: with vfio-pci there is no"),
]
"""`spec.devices` that are refused, and a part of the message."""
