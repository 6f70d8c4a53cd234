"""MACs that a virtual machine asks for: KubeVirt's annotation of the pod that runs it.

    [{"claimName": "net", "requestName": "vf", "macs": ["de:ad:00:00:be:ef"]}]

`claimName` is the pod's name for the claim, because virtual machines share templates, and MACs are their own.
Source: VEP 183 of kubevirt/enhancements (August 2026). Its drafts had the key `kubevirt.io/dra-networks`, and
one `mac` an entry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec

from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.json import decode
from k8s_rdma.wire.objects.claims import MAX_RESULTS

if TYPE_CHECKING:
    from collections.abc import Mapping

KEYS = ("k8s.v1.cni.cncf.io/dra-networks", "kubevirt.io/dra-networks")

MAX_ENTRIES = 256


class _Entry(msgspec.Struct, frozen=True, rename="camel"):
    claim_name: str = ""
    request_name: str = ""
    macs: Annotated[tuple[str, ...], msgspec.Meta(max_length=MAX_RESULTS)] = ()
    mac: str = ""


_decoder = msgspec.json.Decoder(Annotated[tuple[_Entry, ...], msgspec.Meta(max_length=MAX_ENTRIES)])


def read_macs(annotations: Mapping[str, str], pod_claim: str) -> dict[str, tuple[str, ...]]:
    """Read the MACs for the devices of a claim, by request, in the order of the request's devices.

    pod_claim: the pod's name for the claim.
    MalformedError names the annotation, and the field in it.
    """
    key = next((key for key in KEYS if annotations.get(key)), None)
    if key is None:
        return {}
    found: dict[str, tuple[str, ...]] = {}
    for index, entry in enumerate(decode(annotations[key], _decoder, f"annotation {key}")):
        macs = entry.macs or ((entry.mac,) if entry.mac else ())
        if entry.claim_name != pod_claim or not macs:
            continue
        if entry.request_name in found:
            msg = f"annotation {key}: [{index}]: a second entry of claim {pod_claim}, {entry.request_name}"
            raise MalformedError(msg)
        found[entry.request_name] = macs
    return found
