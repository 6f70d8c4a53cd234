"""Objects that the chart makes, as commands read them."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import TYPE_CHECKING

import msgspec
import pytest

from k8s_rdma.errors import MalformedError
from k8s_rdma.kube.chart_objects import node_containers, read_extender_config, read_placement_keys
from k8s_rdma.kube.documents import Documents
from k8s_rdma.kube.errors import ApiRefusedError
from k8s_rdma.wire.placement_keys import PlacementKeys
from kube.stored_objects import serving_objects

if TYPE_CHECKING:
    from pathlib import Path


SECRET = b"a secret of enough bytes"


class Part(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """As much of the extender's configuration as a command needs."""

    request_timeout_s: float = 1.0


def test_containers_of_a_node_are_found_by_name_each_with_its_pod(tmp_path: Path) -> None:
    pods = [
        {"metadata": {"name": "starting"}, "spec": None},
        {
            "metadata": {"name": "n-1"},
            "spec": {"containers": [{"name": "agent"}, {"name": "server", "x": 1}]},
        },
    ]
    path = "/api/v1/namespaces/k8s-rdma/pods"
    with (
        serving_objects({path: json.dumps({"items": pods}).encode()}, tmp_path) as kubeconfig,
        Documents(kubeconfig) as api,
    ):
        found = list(node_containers(api, "k8s-rdma", "w1", "server"))
        with pytest.raises(ApiRefusedError, match="not the name of an object"):
            list(node_containers(api, "../secrets", "w1", "server"))
    assert found == [(pods[1], {"name": "server", "x": 1})]


def test_configuration_of_the_extender_is_of_the_first_namespace_that_has_it(tmp_path: Path) -> None:
    def config_map(text: object) -> bytes:
        return json.dumps({"data": {"extender.yaml": text}}).encode()

    answers = {
        "/api/v1/namespaces/a/configmaps/k8s-rdma-extender": b'{"data": null}',
        "/api/v1/namespaces/b/configmaps/k8s-rdma-extender": config_map("requestTimeoutS: 7"),
        "/api/v1/namespaces/c/configmaps/k8s-rdma-extender": config_map("{requestTimeoutS: 9, x: 1}"),
    }
    with serving_objects(answers, tmp_path) as kubeconfig, Documents(kubeconfig) as api:
        assert read_extender_config(api, ("none", "a", "b", "c"), Part) == Part(request_timeout_s=7)
        assert read_extender_config(api, ("none", "a"), Part) is None
        with pytest.raises(
            MalformedError, match=r"ConfigMap c/k8s-rdma-extender: extender\.yaml.*: x: unknown key"
        ):
            read_extender_config(api, "c", Part)


def test_keys_that_verify_placements_are_those_of_the_secret(tmp_path: Path) -> None:
    def secret(**files: str) -> bytes:
        return json.dumps({"data": files}).encode()

    of = "/api/v1/namespaces/{}/secrets/k8s-rdma-placement-key"
    answers = {
        of.format("n"): secret(**{"placement.key": b64encode(SECRET).decode()}),
        of.format("odd"): secret(**{"placement.key": "no base64"}),
        of.format("short"): secret(**{"placement.key": b64encode(b"short").decode()}),
    }
    with serving_objects(answers, tmp_path) as kubeconfig, Documents(kubeconfig) as api:
        assert read_placement_keys(api, "n").accepted == PlacementKeys.shared(SECRET).accepted
        assert read_placement_keys(api, "n").signer is None
        for namespace, words in (("none", "there is none"), ("odd", "base64"), ("short", "bytes")):
            with pytest.raises(MalformedError, match=f"Secret {namespace}/k8s-rdma-placement-key.*{words}"):
                read_placement_keys(api, namespace)
