"""Facts of `webhook`: in order, and for each kind of finding."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from k8s_rdma.doctor.cluster.webhook import WebhookFacts, check_webhook

if TYPE_CHECKING:
    from k8s_rdma.doctor.finding import Finding


WEBHOOK = WebhookFacts(location="k8s-rdma/k8s-rdma-webhook", days=3000)


def webhook(**more: Any) -> list[Finding]:
    return list(check_webhook(replace(WEBHOOK, **more)))


IN_ORDER = webhook()

CASES = {
    "webhook-not-seen": webhook(denied=True),
    "webhook-no-ca-bundle": webhook(ca_bundle=False),
    "webhook-no-certificate": webhook(unusable="there is no such Secret"),
    "webhook-expired": webhook(days=-1),
    "webhook-expiring": webhook(days=12),
    "webhook-untrusted": webhook(refused="unable to get local issuer certificate"),
}
