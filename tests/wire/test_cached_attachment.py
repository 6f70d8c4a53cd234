"""Attachments in the cache of runtimes, as libcni writes it."""

from __future__ import annotations

import base64
import json

import pytest

from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.cached_attachment import decode_cached

ANNOTATIONS = "io.kubernetes.cri.pod-annotations"
OURS = {"type": "k8s-rdma-cni", "capabilities": {ANNOTATIONS: True}}
LIST = {"cniVersion": "1.1.0", "name": "net", "plugins": [{"type": "bridge"}, OURS]}


def kept(config: object = LIST, **changes: object) -> bytes:
    document = {
        "kind": "cniCacheV1",
        "containerId": "c1",
        "config": base64.b64encode(json.dumps(config).encode()).decode(),
        "ifName": "eth0",
        "networkName": "net",
        "netns": "/run/netns/c1",
        "cniArgs": [["K8S_POD_NAME", "p"], ["K8S_POD_UID", "u"]],
        "capabilityArgs": {ANNOTATIONS: {"a": "b"}, "portMappings": []},
        "result": {"interfaces": [{"name": "eth0", "pciID": "0000:03:00.1"}, {"name": "rdma0"}]},
    }
    return json.dumps(document | changes).encode()


def test_configuration_is_that_of_our_plugin_in_the_list() -> None:
    given = json.loads(decode_cached(kept()).stdin(["k8s-rdma-cni"]))
    assert given == OURS | {
        "name": "net",
        "cniVersion": "1.1.0",
        "runtimeConfig": {ANNOTATIONS: {"a": "b"}},
        "prevResult": {},
    }


@pytest.mark.parametrize(
    "config", [LIST | {"plugins": [OURS]}, OURS | {"name": "net", "cniVersion": "1.1.0"}]
)
def test_configuration_of_the_first_plugin_has_no_result_before_it(config: object) -> None:
    given = json.loads(decode_cached(kept(config)).stdin(["k8s-rdma-cni"]))
    assert "prevResult" not in given
    assert given["cniVersion"] == "1.1.0"


def test_attachment_of_other_plugins_has_no_configuration_for_ours() -> None:
    assert decode_cached(kept(LIST | {"plugins": [{"type": "bridge"}]})).stdin(["k8s-rdma-cni"]) is None


def test_environment_is_that_of_its_add() -> None:
    environment = decode_cached(kept()).environment("/opt/cni/bin")
    assert environment["CNI_ARGS"] == "K8S_POD_NAME=p;K8S_POD_UID=u"
    assert environment["CNI_NETNS"] == "/run/netns/c1"


def test_functions_are_known_by_name_if_the_result_has_them() -> None:
    assert decode_cached(kept()).functions() == {"eth0": "0000:03:00.1"}


@pytest.mark.parametrize("spoilt", [b"", b"{", b"{}", kept(kind="cniCacheV2")])
def test_file_of_another_kind_is_refused(spoilt: bytes) -> None:
    with pytest.raises(MalformedError, match="cached attachment"):
        decode_cached(spoilt)


def test_malformed_configuration_is_refused_by_the_name_of_its_network() -> None:
    with pytest.raises(MalformedError, match="cached configuration of net"):
        decode_cached(kept(7)).stdin(["k8s-rdma-cni"])
