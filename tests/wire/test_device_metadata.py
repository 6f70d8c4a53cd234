"""Device metadata as containers read it: KEP-5304, `DecodeMetadataFromStream` of Kubernetes 1.37."""

from __future__ import annotations

import json
from typing import Any

import pytest

from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.claims import ClaimName, PreparedClaimInterface
from k8s_rdma.wire.device_metadata import (
    VERSIONS,
    DescribedRequest,
    DescribedVf,
    container_path,
    encode_metadata,
)

CLAIM = ClaimName(namespace="team", name="train-net-7xk2p", uid="claim-1")
PREPARED = PreparedClaimInterface(
    device="enp4s0f0",
    share_id="share-1",
    pci="0000:04:00.3",
    rdma_device="mlx5_3",
    min_tx_rate=25_000,
    max_tx_rate=40_000,
)
ATTACHED = PreparedClaimInterface(
    device="enp4s0f0",
    share_id="share-1",
    pci="0000:04:00.3",
    rdma_device="mlx5_3",
    min_tx_rate=25_000,
    max_tx_rate=40_000,
    ifname="rdma0",
    mac="02:5d:1f:c2:00:07",
    ips=("192.0.2.5/24", "2001:db8::0005/64"),
    min_enforced="hardware",
    max_enforced="software",
)


def vf(interface: PreparedClaimInterface = PREPARED, **changes: Any) -> DescribedVf:
    found = DescribedVf(
        pool="w1", interface=interface, pf="enp4s0f0", vf=2, numa_node=1, pcie_root="pci0000:00"
    )
    return found._replace(**changes)


def request(*vfs: DescribedVf, name: str = "data", pod_claim: str = "", claim: ClaimName = CLAIM) -> Any:
    return DescribedRequest(claim=claim, name=name, pod_claim=pod_claim, vfs=vfs or (vf(),))


def stream(data: bytes) -> list[dict[str, Any]]:
    """Read all objects of a file, as a decoder of a JSON stream does: white space between them is ignored."""
    text, decoder, found = data.decode(), json.JSONDecoder(), []
    while text := text.lstrip():
        value, end = decoder.raw_decode(text)
        found.append(value)
        text = text[end:]
    return found


def first(data: bytes) -> dict[str, Any]:
    return stream(data)[0]


def device(data: bytes) -> dict[str, Any]:
    [found] = first(data)["requests"][0]["devices"]
    assert isinstance(found, dict)
    return found


def test_file_says_the_same_in_each_version_the_newest_first() -> None:
    newest, oldest = stream(encode_metadata(request(), None))
    assert (newest.pop("apiVersion"), oldest.pop("apiVersion")) == VERSIONS
    assert VERSIONS[0] == "metadata.resource.k8s.io/v1beta1"
    assert newest == oldest


def test_prepared_claim_is_described_without_network_data() -> None:
    assert first(encode_metadata(request(), None)) == {
        "apiVersion": "metadata.resource.k8s.io/v1beta1",
        "kind": "DeviceMetadata",
        "metadata": {"name": "train-net-7xk2p", "namespace": "team", "uid": "claim-1", "generation": 1},
        "requests": [
            {
                "name": "data",
                "devices": [
                    {
                        "driver": "rdma.k8s-rdma.io",
                        "pool": "w1",
                        "name": "enp4s0f0",
                        "attributes": {
                            "resource.kubernetes.io/pciBusID": {"string": "0000:04:00.3"},
                            "resource.kubernetes.io/pcieRoot": {"string": "pci0000:00"},
                            "resource.kubernetes.io/numaNode": {"int": 1},
                            "rdma.k8s-rdma.io/pf": {"string": "enp4s0f0"},
                            "rdma.k8s-rdma.io/vf": {"int": 2},
                            "rdma.k8s-rdma.io/rdmaDevice": {"string": "mlx5_3"},
                            "rdma.k8s-rdma.io/minRate": {"int": 25_000},
                            "rdma.k8s-rdma.io/maxRate": {"int": 40_000},
                        },
                    }
                ],
            }
        ],
    }


def test_attached_interface_is_described_with_its_network_and_enforcers() -> None:
    found = device(encode_metadata(request(vf(ATTACHED)), None))
    assert found["networkData"] == {
        "interfaceName": "rdma0",
        "hardwareAddress": "02:5d:1f:c2:00:07",
        "ips": ["192.0.2.5/24", "2001:db8::5/64"],
    }
    assert found["attributes"]["rdma.k8s-rdma.io/enforced"] == {"string": "min=hardware,max=software"}


def test_unknown_facts_and_a_missing_cap_are_left_out() -> None:
    uncapped = PreparedClaimInterface(device="f0", share_id="s", pci="0000:04:00.3")
    found = device(encode_metadata(request(vf(uncapped, numa_node=None, pcie_root="", pf="")), None))
    assert found["attributes"] == {
        "resource.kubernetes.io/pciBusID": {"string": "0000:04:00.3"},
        "rdma.k8s-rdma.io/vf": {"int": 2},
        "rdma.k8s-rdma.io/minRate": {"int": 0},
    }


def test_generation_grows_with_each_change_and_only_then() -> None:
    begun = encode_metadata(request(), None)
    assert encode_metadata(request(), begun) is begun
    attached = encode_metadata(request(vf(ATTACHED)), begun)
    padded = attached.ljust(len(attached) + 100)
    assert encode_metadata(request(vf(ATTACHED)), padded) is padded
    assert [first(data)["metadata"]["generation"] for data in (begun, attached)] == [1, 2]
    assert first(encode_metadata(request(), padded))["metadata"]["generation"] == 3


@pytest.mark.parametrize(
    "former", [b"", b"\n", b"{", b"[]", b'{"metadata": {"generation": "7"}}', b"\xff\xfe", b"null\n{}"]
)
def test_unreadable_file_is_written_anew(former: bytes) -> None:
    assert first(encode_metadata(request(), former))["metadata"]["generation"] == 1


def test_addresses_that_the_agent_no_longer_has_stay() -> None:
    known = encode_metadata(request(vf(ATTACHED)), None)
    forgotten = PreparedClaimInterface(
        **{name: getattr(ATTACHED, name) for name in ATTACHED.__struct_fields__} | {"ips": None}
    )
    assert encode_metadata(request(vf(forgotten)), known) is known
    renamed = PreparedClaimInterface(
        **{name: getattr(forgotten, name) for name in forgotten.__struct_fields__} | {"ifname": "rdma1"}
    )
    assert "ips" not in device(encode_metadata(request(vf(renamed)), known))["networkData"]


def test_path_names_the_claim_or_the_pods_name_for_a_template_and_no_alternative() -> None:
    base = "/var/run/kubernetes.io/dra-device-attributes"
    file = "rdma.k8s-rdma.io-metadata.json"
    assert container_path(request()) == f"{base}/resourceclaims/train-net-7xk2p/data/{file}"
    made = request(name="net/fast", pod_claim="net")
    assert container_path(made) == f"{base}/resourceclaimtemplates/net/net/{file}"
    written = first(encode_metadata(made, None))
    assert (written["podClaimName"], written["requests"][0]["name"]) == ("net", "net/fast")


@pytest.mark.parametrize(
    ("claim", "pod_claim"), [("..", ""), ("a/../../etc", ""), ("c", ".."), ("c", "a/b"), ("c", "A")]
)
def test_path_of_a_name_that_could_lead_elsewhere_is_refused(claim: str, pod_claim: str) -> None:
    hostile = ClaimName(namespace="team", name=claim, uid="claim-1")
    with pytest.raises(MalformedError, match="no name of a claim or request"):
        container_path(request(claim=hostile, pod_claim=pod_claim))
