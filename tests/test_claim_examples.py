"""Every file of examples/claims/: parameters are read, quantities are valid, the largest come first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from admission import policy
from k8s_rdma.wire.claim_template import DEVICE_CLASS, MAX_INTERFACES_PER_CLAIM
from k8s_rdma.wire.claims import DRIVER
from k8s_rdma.wire.pod_spec import quantity
from resource_claims import read_interface_config
from warm_program import run

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
FILES = sorted((EXAMPLES / "claims").iterdir())
SIXTY = "sixty-interfaces.yaml"

of_each_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)


def objects(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def templates(path: Path) -> list[dict[str, Any]]:
    return [each for each in objects(path) if each["kind"] == "ResourceClaimTemplate"]


def pod(path: Path) -> dict[str, Any]:
    """The `spec` of the pod, or of the template's."""
    [found] = [each for each in objects(path) if each["kind"] != "ResourceClaimTemplate"]
    spec = found["spec"]
    return spec if found["kind"] == "Pod" else spec["template"]["spec"]


def devices(template: dict[str, Any]) -> dict[str, Any]:
    return template["spec"]["spec"]["devices"]


def of_ours(template: dict[str, Any]) -> list[dict[str, Any]]:
    requests = devices(template)["requests"]
    return [each for each in requests if each["exactly"]["deviceClassName"] == DEVICE_CLASS]


@of_each_file
def test_policies_take_the_claims_and_know_their_order(path: Path):
    for each in templates(path):
        assert policy("claims").refusals(each) == []
        many = len(of_ours(each)) > 16
        assert [told.split()[0] for told in policy("claims-order").refusals(each)] == ["30"] * many


@of_each_file
def test_agents_read_the_parameters_of_each_request(path: Path):
    for each in templates(path):
        names = {request["name"] for request in devices(each)["requests"]}
        for config in devices(each).get("config", ()):
            assert config["opaque"]["driver"] == DRIVER
            assert names.issuperset(config["requests"])
            for request in of_ours(each):
                if request["name"] in config["requests"]:
                    amounts = request["exactly"].get("capacity", {}).get("requests", {})
                    mbps = int(quantity(amounts.get("bandwidth", "0")) / 1_000_000)
                    read_interface_config(msgspec.json.encode(config["opaque"]["parameters"]), min_mbps=mbps)
        for constraint in devices(each).get("constraints", ()):
            assert names.issuperset(constraint["requests"])


@of_each_file
def test_claims_have_room_for_their_interfaces(path: Path):
    for each in templates(path):
        assert len(devices(each)["requests"]) <= 32
        assert (
            sum(request["exactly"].get("count", 1) for request in of_ours(each)) <= MAX_INTERFACES_PER_CLAIM
        )


@of_each_file
def test_pods_use_each_template_and_containers_each_claim(path: Path):
    claims = {each["name"]: each["resourceClaimTemplateName"] for each in pod(path)["resourceClaims"]}
    by_name = {each["metadata"]["name"]: each for each in templates(path)}
    assert sorted(claims.values()) == sorted(by_name)
    used = [each for container in pod(path)["containers"] for each in container["resources"]["claims"]]
    assert {each["name"] for each in used} == claims.keys()
    for each in used:
        requests = [request["name"] for request in devices(by_name[claims[each["name"]]])["requests"]]
        assert each.get("request", requests[0]) in requests


@of_each_file
def test_readme_has_the_file(path: Path):
    assert f"| `{path.name}` |" in (EXAMPLES / "README.md").read_text()


def test_sixty_interfaces_are_generated_by_the_command_for_the_pod():
    path = EXAMPLES / "claims" / SIXTY
    ran = run(["claim", "--pod", str(EXAMPLES / "pods" / SIXTY)])
    ran.check_returncode()
    comment = "".join(line for line in path.read_text().splitlines(True) if line.startswith("#"))
    assert path.read_text() == comment + ran.stdout
