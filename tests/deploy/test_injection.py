"""Objects that the chart installs so that a pod needs its annotation alone: a policy, or a webhook."""

from __future__ import annotations

import base64
import ssl
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from admission import documents as policy_documents
from deploy.rendering.chart import documents, render
from k8s_rdma.config.devices import SLOT_RESOURCE
from k8s_rdma.config.files import load_config
from k8s_rdma.config.webhook import WebhookConfig

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

Json = dict[str, Any]
OLD, NEW = "v1.35.9", "v1.36.0"
YEAR_S = 365 * 24 * 3600
DEVICE_RESOURCES = ["rdma-sriov/dev-infiniband-mount", "tencent.com/rdma", "k8s-rdma.io/slot"]


def rendered(
    given: Mapping[str, Any], kubernetes: str, cluster: Sequence[Json] = ()
) -> dict[tuple[str, str], Json]:
    """Objects by kind and name."""
    objects = documents(render(given, kubernetes=kubernetes, cluster=cluster))
    return {(each["kind"], each["metadata"]["name"]): each for each in objects}


def added(given: Mapping[str, Any], kubernetes: str) -> Json | None:
    """Return the configuration that injects, if there is one."""
    objects = rendered(given, kubernetes)
    policy = objects.get(("MutatingAdmissionPolicy", "k8s-rdma-inject"))
    webhook = objects.get(("MutatingWebhookConfiguration", "k8s-rdma-inject"))
    assert policy is None or webhook is None
    assert (policy is None) == (("MutatingAdmissionPolicyBinding", "k8s-rdma-inject") not in objects)
    assert (webhook is None) == (("Deployment", "k8s-rdma-webhook") not in objects)
    if policy is not None:
        variables = {each["name"]: each["expression"] for each in policy["spec"]["variables"]}
        keys = {"schedulerName": "schedulerName", "slot": "slot", "deviceResources": "deviceResources"}
        return {"by": "policy"} | {key: yaml.safe_load(variables[name]) for key, name in keys.items()}
    if webhook is not None:
        text = objects["ConfigMap", "k8s-rdma-webhook"]["data"]["webhook.yaml"]
        configuration = yaml.safe_load(text)
        return {"by": "webhook"} | {
            key: configuration[key] or "" for key in ("schedulerName", "slot", "deviceResources")
        }
    return None


DEFAULT = {"schedulerName": "rdma-scheduler", "slot": SLOT_RESOURCE, "deviceResources": DEVICE_RESOURCES}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, DEFAULT),
        ({"extender": {"scheduler": {"name": "mine"}}}, {**DEFAULT, "schedulerName": "mine"}),
        ({"extender": {"mode": "host-network"}}, {**DEFAULT, "schedulerName": ""}),
        ({"extender": {"enabled": False}}, {**DEFAULT, "schedulerName": ""}),
        ({"injection": {"schedulerName": False}}, {**DEFAULT, "schedulerName": ""}),
        ({"injection": {"slot": False}}, {**DEFAULT, "slot": "", "deviceResources": DEVICE_RESOURCES[:2]}),
        (
            {"node": {"devicePlugin": {"enabled": False}}},
            {**DEFAULT, "slot": "", "deviceResources": DEVICE_RESOURCES[:2]},
        ),
        (
            {
                "node": {
                    "devicePlugin": {
                        "config": {
                            "resources": [
                                {"mode": "shared", "name": "example.org/shared"},
                                {"mode": "exact", "name": "example.org/vf"},
                            ]
                        }
                    }
                }
            },
            {
                **DEFAULT,
                "slot": "example.org/vf",
                "deviceResources": [*DEVICE_RESOURCES[:2], "example.org/vf", "example.org/shared"],
            },
        ),
        ({"injection": {"schedulerName": False, "slot": False}}, None),
        ({"injection": {"enabled": False}}, None),
        ({"policies": {"enabled": False}}, DEFAULT),
    ],
)
@pytest.mark.parametrize(("kubernetes", "by"), [(OLD, "webhook"), (NEW, "policy")])
def test_injection_adds_the_resources_of_the_values(
    given: Json, expected: Json | None, kubernetes: str, by: str
):
    assert added(given, kubernetes) == (expected and {"by": by, **expected})


@pytest.mark.parametrize("kubernetes", [OLD, NEW])
@pytest.mark.parametrize("by", ["policy", "webhook"])
def test_administrator_may_choose_who_adds_it(by: str, kubernetes: str):
    assert added({"injection": {"by": by}}, kubernetes) == {"by": by, **DEFAULT}


def test_configuration_of_the_webhook_is_one(tmp_path: Path):
    path = tmp_path / "webhook.yaml"
    path.write_text(rendered({}, OLD)["ConfigMap", "k8s-rdma-webhook"]["data"]["webhook.yaml"])
    config = load_config(WebhookConfig, str(path), {})
    assert (config.scheduler_name, config.slot) == ("rdma-scheduler", SLOT_RESOURCE)
    assert config.tls is not None


def test_policy_of_the_file_is_that_of_the_defaults():
    [policy, _] = policy_documents("inject")
    variables = {each["name"]: each["expression"] for each in policy["spec"]["variables"]}
    assert yaml.safe_load(variables["schedulerName"]) == DEFAULT["schedulerName"]
    assert yaml.safe_load(variables["slot"]) == DEFAULT["slot"]
    assert sorted(yaml.safe_load(variables["deviceResources"])) == sorted(DEVICE_RESOURCES)


# The webhook


def test_webhook_stands_in_nobodys_way():
    [webhook] = rendered({}, OLD)["MutatingWebhookConfiguration", "k8s-rdma-inject"]["webhooks"]
    assert webhook["failurePolicy"] == "Ignore"
    [expression] = webhook["namespaceSelector"]["matchExpressions"]
    assert (expression["operator"], expression["values"]) == ("NotIn", ["kube-system", "k8s-rdma"])
    assert webhook["matchConditions"], "pods without the annotation are created without it"


def test_webhook_has_no_privileges():
    pod = rendered({}, OLD)["Deployment", "k8s-rdma-webhook"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert pod["automountServiceAccountToken"] is False
    assert "hostNetwork" not in pod
    assert container["securityContext"]["runAsNonRoot"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert rendered({}, OLD)["Deployment", "k8s-rdma-webhook"]["spec"]["replicas"] == 2


# Its certificate


def made(cluster: Sequence[Json] = (), given: Mapping[str, Any] | None = None) -> tuple[Json, Json, bytes]:
    """The authority's Secret, the webhook's, and the authorities that the API server accepts."""
    objects = rendered(given or {}, OLD, cluster)
    [webhook] = objects["MutatingWebhookConfiguration", "k8s-rdma-inject"]["webhooks"]
    bundle = base64.b64decode(webhook["clientConfig"]["caBundle"])
    return objects["Secret", "k8s-rdma-webhook-ca"], objects["Secret", "k8s-rdma-webhook"], bundle


def older(secret: Json, by_s: float) -> Json:
    """The same, made earlier."""
    annotations = {"k8s-rdma.io/made": str(int(time.time() - by_s))}
    return {**secret, "metadata": {**secret["metadata"], "annotations": annotations}}


def verifies(bundle: bytes, secret: Json, folder: Path) -> bool:
    """Whether an API server that has the bundle accepts the certificate by the Service's name."""
    authorities, certificate = folder / "ca.crt", folder / "tls.crt"
    authorities.write_bytes(bundle)
    certificate.write_bytes(base64.b64decode(secret["data"]["tls.crt"]))
    name = ("-verify_hostname", "k8s-rdma-webhook.k8s-rdma.svc", "-purpose", "sslserver")
    command = ("openssl", "verify", *name, "-CAfile", str(authorities), str(certificate))
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def test_api_server_accepts_the_certificate(tmp_path: Path):
    _, webhook, bundle = made()
    assert verifies(bundle, webhook, tmp_path)
    _, _, other = made()
    assert not verifies(other, webhook, tmp_path)
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).write_bytes(base64.b64decode(webhook["data"][name]))
    ssl.create_default_context().load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")


def test_upgrade_keeps_the_certificate():
    authority, webhook, bundle = made()
    again = made([authority, webhook])
    assert again == (authority, webhook, bundle)


def test_certificate_is_renewed_after_a_year_by_the_same_authority(tmp_path: Path):
    authority, webhook, bundle = made()
    same, renewed, now = made([older(authority, YEAR_S + 60), older(webhook, YEAR_S + 60)])
    assert renewed["data"] != webhook["data"]
    assert (same["data"], now) == (authority["data"], bundle)
    assert verifies(bundle, renewed, tmp_path)


def test_authority_is_renewed_after_five_years_beside_the_old_one(tmp_path: Path):
    authority, webhook, bundle = made()
    other, renewed, both = made([older(authority, 5 * YEAR_S + 60), webhook])
    assert other["data"]["ca.key"] != authority["data"]["ca.key"]
    assert verifies(both, webhook, tmp_path), "until its pods have the new one"
    assert verifies(both, renewed, tmp_path)
    assert not verifies(bundle, renewed, tmp_path)
    assert made([other, renewed])[2] == both


def test_key_of_the_authority_is_in_no_pod():
    for workload in (
        each for each in rendered({}, OLD).values() if each["kind"] in {"DaemonSet", "Deployment"}
    ):
        assert "k8s-rdma-webhook-ca" not in str(workload)


def test_administrators_certificate_is_used():
    given = {
        "injection": {
            "webhook": {
                "tlsSecretName": "mine",
                "caBundle": "QUJD",
                "annotations": {"cert-manager.io/inject-ca-from": "k8s-rdma/mine"},
            }
        }
    }
    objects = rendered(given, OLD)
    assert not [name for kind, name in objects if kind == "Secret" and "webhook" in name]
    configuration = objects["MutatingWebhookConfiguration", "k8s-rdma-inject"]
    assert configuration["webhooks"][0]["clientConfig"]["caBundle"] == "QUJD"
    assert configuration["metadata"]["annotations"] == given["injection"]["webhook"]["annotations"]
    volumes = objects["Deployment", "k8s-rdma-webhook"]["spec"]["template"]["spec"]["volumes"]
    assert {"secretName": "mine", "defaultMode": 288} in [each.get("secret") for each in volumes]


# Warnings of the other policies


def expressions(kubernetes: str, given: Json, name: str) -> str:
    return str(rendered(given, kubernetes).get(("ValidatingAdmissionPolicy", name)))


@pytest.mark.parametrize("kubernetes", [OLD, NEW])
def test_templates_are_not_warned_about_resources_that_injection_adds(kubernetes: str):
    other = {"injection": {"enabled": False}}
    name = "k8s-rdma-scheduler-name"
    assert "'default-scheduler']" in expressions(kubernetes, {}, name)
    assert "'default-scheduler']" not in expressions(kubernetes, other, name)
    own = {"extender": {"mode": "host-network"}}
    name = "k8s-rdma-managed-resource"
    assert "'injected', 'expression': 'true'" in expressions(kubernetes, own, name)
    assert "'injected', 'expression': 'false'" in expressions(kubernetes, {**own, **other}, name)
