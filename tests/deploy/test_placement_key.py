"""The keys that the chart makes, and those that it leaves as they are."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from deploy.rendering.chart import documents, render
from k8s_rdma.config.placement_keys import agent_keys, extender_keys

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

Json = dict[str, Any]
ACCEPTED, SIGNING = "k8s-rdma-placement-key", "k8s-rdma-placement-signing-key"


def secret(name: str, entries: Mapping[str, bytes], manager: str = "Helm") -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": name,
            "namespace": "k8s-rdma",
            "labels": {"app.kubernetes.io/managed-by": manager},
        },
        "data": {entry: base64.b64encode(content).decode() for entry, content in entries.items()},
    }


def secrets(
    given: Mapping[str, Any] | None = None, cluster: Sequence[Json] = ()
) -> dict[str, dict[str, bytes]]:
    """Return the data of the Secrets that the chart renders."""
    found = [each for each in documents(render(given or {}, cluster=cluster)) if each["kind"] == "Secret"]
    return {
        each["metadata"]["name"]: {key: base64.b64decode(value) for key, value in each["data"].items()}
        for each in found
    }


def volume(workload: str) -> list[str]:
    """The Secrets of a workload's volume of keys."""
    (found,) = [each for each in documents(render({})) if each["kind"] == workload]
    (each,) = [v for v in found["spec"]["template"]["spec"]["volumes"] if v["name"] == "placement-key"]
    if "secret" in each:
        return [each["secret"]["secretName"]]
    return [source["secret"]["name"] for source in each["projected"]["sources"]]


def files(directory: Path, *entries: Mapping[str, bytes]) -> str:
    directory.mkdir()
    for name, content in (pair for each in entries for pair in each.items()):
        (directory / name).write_bytes(content)
    return str(directory)


def test_new_installation_has_a_pair_of_which_nodes_have_the_public_half(tmp_path: Path):
    made = secrets()
    assert set(made) == {ACCEPTED, SIGNING}
    signing = extender_keys(files(tmp_path / "extender", made[ACCEPTED], made[SIGNING]))()
    verifying = agent_keys(files(tmp_path / "agent", made[ACCEPTED]))()
    assert signing is not None
    assert signing.signer is not None
    assert verifying is not None
    assert [key.algorithm for key in verifying.accepted] == ["ed25519"]
    assert [key.id for key in verifying.accepted] == [key.id for key in signing.accepted]
    assert verifying.accepted[0].verify(b"m", signing.signer.sign(b"m"))


def test_private_key_is_in_no_volume_of_a_node():
    assert volume("DaemonSet") == [ACCEPTED]
    assert volume("Deployment") == [ACCEPTED, SIGNING]


def test_processes_read_the_volume_whole():
    found = {each["metadata"]["name"]: each for each in documents(render({})) if each["kind"] == "ConfigMap"}
    for name, file in (("k8s-rdma-node", "agent.yaml"), ("k8s-rdma-extender", "extender.yaml")):
        assert yaml.safe_load(found[name]["data"][file])["placementKeyFile"] == "/etc/k8s-rdma/key"


KEPT = {
    "hmac": [secret(ACCEPTED, {"placement.key": b"a secret of before"})],
    "pair": [secret(ACCEPTED, {"ed25519.pub": b"public"}), secret(SIGNING, {"signing.key": b"private"})],
    "rotating": [
        secret(ACCEPTED, {"placement.key": b"new", "previous.key": b"old"}),
        secret(SIGNING, {"signing.key": b"private"}),
    ],
}


@pytest.mark.parametrize("name", KEPT)
def test_keys_that_are_there_stay_as_they_are(name: str):
    there = {each["metadata"]["name"]: each for each in KEPT[name]}
    assert secrets(cluster=KEPT[name]) == {
        name: {key: base64.b64decode(value) for key, value in each["data"].items()}
        for name, each in there.items()
    }


def test_foreign_signing_key_is_left_alone():
    cluster = [
        secret(ACCEPTED, {"placement.key": b"old", "ed25519.pub": b"public"}),
        secret(SIGNING, {"signing.key": b"private"}, manager="kubectl"),
    ]
    assert set(secrets(cluster=cluster)) == {ACCEPTED}


def test_given_secret_takes_the_place_of_placement_key_alone():
    cluster = [secret(ACCEPTED, {"placement.key": b"old", "next.key": b"next"})]
    made = secrets({"placementKey": {"value": "new"}}, cluster)
    assert made == {ACCEPTED: {"placement.key": b"new", "next.key": b"next"}}
