"""Facts of the admission webhook: its configuration, and its certificate as the API server verifies it."""

from __future__ import annotations

import os
import ssl
from base64 import b64decode
from contextlib import suppress
from dataclasses import replace
from http import HTTPStatus
from math import floor
from typing import TYPE_CHECKING, Any

from k8s_rdma.doctor.cluster.webhook import WEBHOOK_NAME, WebhookFacts
from k8s_rdma.kube.errors import ApiRefusedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from k8s_rdma.kube.documents import Documents

_DAY_S = 86_400
_EXPIRED = 10
"""`X509_V_ERR_CERT_HAS_EXPIRED` (OpenSSL, x509_vfy.h)."""

_CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
_MADE_BY_CHART = "k8s-rdma-webhook"
_FLIGHTS = 8
"""More than any TLS handshake has."""


def webhook_facts(api: Documents, pods: Iterable[Mapping[str, Any]]) -> WebhookFacts:
    """Collect the facts of the webhook's certificate, as the API server verifies it. pods: the webhook's."""
    configuration = api.get(f"{_CONFIGURATIONS}/{WEBHOOK_NAME}")
    if configuration is None:
        return WebhookFacts(configured=False)
    client = next((entry.get("clientConfig") or {} for entry in configuration.get("webhooks") or ()), {})
    service, bundle = client.get("service"), client.get("caBundle") or ""
    if not service:
        return WebhookFacts()
    secrets = (
        (volume.get("secret") or {}).get("secretName")
        for pod in pods
        for volume in pod["spec"].get("volumes") or ()
        if volume.get("name") == "tls"
    )
    namespace, secret = service["namespace"], next(filter(None, secrets), _MADE_BY_CHART)
    facts = WebhookFacts(location=f"{namespace}/{secret}", ca_bundle=bool(bundle))
    try:
        found = api.get(f"/api/v1/namespaces/{namespace}/secrets/{secret}")
    except ApiRefusedError as refused:
        if refused.status != HTTPStatus.FORBIDDEN:
            raise
        return replace(facts, denied=True)
    data = (found or {}).get("data") or {}
    if not (data.get("tls.crt") and data.get("tls.key")):
        return replace(facts, unusable="has no tls.crt and tls.key" if found else "there is no such Secret")
    return _verified(facts, data, bundle, f"{service['name']}.{namespace}.svc", api.now())


def _verified(
    facts: WebhookFacts, data: Mapping[str, str], bundle: str, name: str, now: datetime
) -> WebhookFacts:
    """Complete the facts by a Secret's data and the bundle, both in base64. name: the Service's."""
    certificate, key = data["tls.crt"], data["tls.key"]
    end_s = 0.0
    try:
        end_s = ssl.cert_time_to_seconds(str(_accept(certificate, key, trusted=certificate)["notAfter"]))
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        if getattr(error, "verify_code", 0) != _EXPIRED:
            return replace(facts, unusable=f"cannot be used: {error}")
    try:
        _accept(certificate, key, trusted=bundle, name=name)
    except (OSError, ValueError) as error:
        facts = replace(facts, refused=getattr(error, "verify_message", "") or str(error))
    return replace(facts, days=floor((end_s - now.timestamp()) / _DAY_S))


def _accept(certificate: str, key: str, *, trusted: str, name: str | None = None) -> Mapping[str, Any]:
    """Verify a certificate in a handshake in memory, as a client that trusts these certificates alone.

    The handshake is necessary because Python has no other way to verify a certificate. The certificate's
    fields are returned. OSError (SSLCertVerificationError) says why it is refused, or that `trusted` has no
    certificate.

    certificate, key, trusted: in base64.
    name: the name that the certificate must be for; by default any.
    """
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.load_verify_locations(cadata=b64decode(trusted).decode("ascii", "ignore"))
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as Go: any of a chain may be trusted
    client.hostname_checks_common_name, client.check_hostname = False, name is not None
    with os.fdopen(os.memfd_create("tls"), "wb", buffering=0) as file:  # the key is never on a disk
        file.write(b64decode(certificate) + b"\n" + b64decode(key))
        server.load_cert_chain(f"/proc/self/fd/{file.fileno()}", password=lambda: b"")
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    for _ in range(_FLIGHTS):
        for end in ends:
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
    return ends[0].getpeercert() or {}
