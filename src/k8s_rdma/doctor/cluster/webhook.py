"""The certificate of the admission webhook."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.doctor.subject import Subject

if TYPE_CHECKING:
    from collections.abc import Iterator

    from k8s_rdma.doctor.finding import Finding

WEBHOOK = Subject(
    "webhook",
    "Admission webhook",
    "The [webhook's certificate](injection.md#the-webhooks-certificate) in its Secret, verified with "
    "`caBundle`, as the API server does; without the right to get that Secret, `caBundle` alone.",
)
WEBHOOK_OK = WEBHOOK.ok()
WEBHOOK_NO_CA_BUNDLE = WEBHOOK.error("no-ca-bundle")
WEBHOOK_NO_CERTIFICATE = WEBHOOK.error("no-certificate")
WEBHOOK_EXPIRED = WEBHOOK.error("expired")
WEBHOOK_UNTRUSTED = WEBHOOK.error("untrusted")
WEBHOOK_EXPIRING = WEBHOOK.warning("expiring")
WEBHOOK_NOT_SEEN = WEBHOOK.note("not-seen")
WEBHOOK_NAME = "k8s-rdma-inject"
EXPIRING_DAYS = 30
"""The chart's certificate is renewed nine years before its end: less is left of one that is not renewed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookFacts:
    """The webhook's configuration in the API server, and its certificate.

    location: the certificate's Secret, `namespace/name`; empty if no Service is configured.
    ca_bundle: whether the configuration has one.
    denied: whether reading the Secret is forbidden.
    unusable: why the Secret has no usable certificate; empty if it has one.
    days: how many days the certificate is valid for; negative once it has expired.
    refused: why the API server, which has the caBundle alone, does not accept it; empty if it does.
    """

    configured: bool = True
    location: str = ""
    ca_bundle: bool = True
    denied: bool = False
    unusable: str = ""
    days: int = 0
    refused: str = ""


@WEBHOOK.check(WebhookFacts)
def check_webhook(facts: WebhookFacts) -> Iterator[Finding]:
    """Check that the API server accepts the webhook's certificate; if it does not, no pod is changed."""
    configuration = f"mutatingwebhookconfigurations {WEBHOOK_NAME}"
    renew = "helm upgrade; with injection.webhook.tlsSecretName, renew that Secret"
    if not facts.configured:
        yield WEBHOOK_OK("none is configured", source=configuration)
        return
    if not facts.location:
        yield WEBHOOK_NOT_SEEN("is no Service: its certificate is not known here", source=configuration)
        return
    source = f"Secret {facts.location}"
    if not facts.ca_bundle:
        yield WEBHOOK_NO_CA_BUNDLE(
            "caBundle is empty: pods are created unchanged",
            about=WEBHOOK_NAME,
            source=configuration,
            expected="the authority of the webhook's certificate",
            fix="helm upgrade; with injection.webhook.tlsSecretName, set caBundle or annotations beside it",
        )
    if facts.denied:
        yield WEBHOOK_NOT_SEEN("no right to get the Secret", source=source)
    elif facts.unusable:
        yield WEBHOOK_NO_CERTIFICATE(
            facts.unusable, about=facts.location, source=source, expected="tls.crt and tls.key", fix=renew
        )
    elif facts.days < 0:
        yield WEBHOOK_EXPIRED(
            "expired: pods are created unchanged",
            about=facts.location,
            source=source,
            expected="a valid one",
            fix=renew,
        )
    elif facts.ca_bundle and facts.refused:
        yield WEBHOOK_UNTRUSTED(
            f"not signed by caBundle, so pods are created unchanged: {facts.refused}",
            about=facts.location,
            source=f"{source}, {configuration}",
            expected="a certificate of that authority, for the webhook's Service",
            fix="helm upgrade; with injection.webhook.tlsSecretName, set its authority as caBundle",
        )
    elif facts.days < EXPIRING_DAYS:
        yield WEBHOOK_EXPIRING(
            f"ends in {facts.days} days",
            about=facts.location,
            source=source,
            expected=f"{EXPIRING_DAYS} days or more",
            fix=renew,
        )
    elif facts.ca_bundle:
        yield WEBHOOK_OK(f"the certificate is valid for {facts.days} days, and of caBundle", source=source)
