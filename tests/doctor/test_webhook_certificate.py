"""The webhook's certificate is judged as the API server does: by its caBundle alone."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

import pytest

from http_server.certificates import Issuer
from k8s_rdma.doctor.cluster.webhook import WEBHOOK_NAME, check_webhook
from k8s_rdma.doctor.collectors.webhook import webhook_facts
from k8s_rdma.kube.errors import ApiRefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from http_server.certificates import Certificate
    from k8s_rdma.kube.documents import Documents

SERVICE = "DNS:k8s-rdma-webhook.k8s-rdma.svc"
CONFIGURATION = f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{WEBHOOK_NAME}"
SECRETS = "/api/v1/namespaces/k8s-rdma/secrets"
MADE_BY_CHART, FROM_CERT_MANAGER = f"{SECRETS}/k8s-rdma-webhook", f"{SECRETS}/from-cert-manager"


@dataclass
class StoredDocuments:
    """As `Documents`, of these objects by path. denied: paths that may not be read."""

    stored: dict[str, Any]
    denied: frozenset[str] = frozenset()
    later: timedelta = field(default_factory=timedelta)

    def get(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any] | None:
        if path in self.denied:
            raise ApiRefusedError("get: secrets is forbidden", status=403)
        return self.stored.get(path)

    def now(self) -> datetime:
        return datetime.now(UTC) + self.later


def configuration(bundle: bytes) -> dict[str, Any]:
    service = {"name": "k8s-rdma-webhook", "namespace": "k8s-rdma", "port": 443}
    client: dict[str, Any] = {"service": service}
    if bundle:
        client["caBundle"] = b64encode(bundle).decode()
    return {"webhooks": [{"clientConfig": client}]}


def secret(made: Certificate) -> dict[str, Any]:
    files = {"tls.crt": made.cert, "tls.key": made.key}
    return {"data": {name: b64encode(path.read_bytes()).decode() for name, path in files.items()}}


def ids(api: StoredDocuments, *pods: dict[str, Any]) -> list[str]:
    return [finding.id for finding in check_webhook(webhook_facts(cast("Documents", api), pods))]


@pytest.fixture
def issuer(tmp_path: Path) -> Issuer:
    return Issuer(tmp_path).make()


@pytest.fixture
def api(issuer: Issuer) -> StoredDocuments:
    """Certificates of tests are valid for two days."""
    made = issuer.issue("webhook", alternative=(SERVICE,))
    return StoredDocuments(
        {CONFIGURATION: configuration(issuer.own.cert.read_bytes()), MADE_BY_CHART: secret(made)}
    )


@pytest.mark.parametrize(
    ("days", "id_"), [(-40, "webhook-ok"), (0, "webhook-expiring"), (3, "webhook-expired")]
)
def test_certificate_is_judged_by_the_time_that_is_left_to_it(
    api: StoredDocuments, days: int, id_: str
) -> None:
    api.later = timedelta(days=days)
    assert ids(api) == [id_]


def test_certificate_of_another_authority_is_refused(api: StoredDocuments, tmp_path: Path) -> None:
    other = Issuer(tmp_path, "other").make()
    api.stored[CONFIGURATION] = configuration(other.own.cert.read_bytes())
    assert ids(api) == ["webhook-untrusted"]
    both = other.own.cert.read_bytes() + Issuer(tmp_path).own.cert.read_bytes()
    api.stored[CONFIGURATION] = configuration(both)
    assert ids(api) == ["webhook-expiring"]


def test_certificate_of_another_name_is_refused(api: StoredDocuments, issuer: Issuer) -> None:
    api.stored[MADE_BY_CHART] = secret(issuer.issue("k8s-rdma-webhook.k8s-rdma.svc"))
    assert ids(api) == ["webhook-untrusted"]


def test_empty_bundle_is_found_although_the_secret_may_not_be_read(api: StoredDocuments) -> None:
    api.stored[CONFIGURATION], api.denied = configuration(b""), frozenset({MADE_BY_CHART})
    assert ids(api) == ["webhook-no-ca-bundle", "webhook-not-seen"]


@pytest.mark.parametrize("bundle", [b"no certificate", "\u00e9".encode()])
def test_malformed_bundle_signs_no_certificate(api: StoredDocuments, bundle: bytes) -> None:
    api.stored[CONFIGURATION] = configuration(bundle)
    assert ids(api) == ["webhook-untrusted"]


@pytest.mark.parametrize(
    "found",
    [
        None,
        {},
        {"data": {"tls.crt": "", "tls.key": ""}},
        {"data": {"tls.crt": "bm9uZQ==", "tls.key": "bm9uZQ=="}},
    ],
)
def test_secret_without_a_usable_certificate_is_found(
    api: StoredDocuments, found: dict[str, Any] | None
) -> None:
    api.stored[MADE_BY_CHART] = found
    assert ids(api) == ["webhook-no-certificate"]


def test_secret_is_the_one_that_the_webhooks_pods_have(api: StoredDocuments) -> None:
    api.stored[FROM_CERT_MANAGER] = api.stored.pop(MADE_BY_CHART)
    pod = {"spec": {"volumes": [{"name": "tls", "secret": {"secretName": "from-cert-manager"}}]}}
    assert ids(api) == ["webhook-no-certificate"]
    assert ids(api, pod) == ["webhook-expiring"]


def test_cluster_without_the_webhook_is_in_order(api: StoredDocuments) -> None:
    del api.stored[CONFIGURATION]
    assert ids(api) == ["webhook-ok"]
