"""Objects applied to the cluster: the CustomResourceDefinition, policies, and the rights that roles grant.

The rights are those that deploy/rbac grants to each process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from k8s_rdma.core.types import GangApi
from k8s_rdma.doctor.cluster.versions import minor_of
from k8s_rdma.doctor.subject import Subject
from k8s_rdma.wire.rdma_node import GROUP, PLURAL, VERSION

if TYPE_CHECKING:
    from k8s_rdma.doctor.finding import Finding

CRD = Subject("crd", "RdmaNode definition")
CRD_OK = CRD.ok()
CRD_MISSING = CRD.error("missing")
CRD_UNUSED = CRD.note("unused")
CRD_VERSION = CRD.error("version")
CRD_FIELDS = CRD.warning("fields")

RIGHTS = Subject(
    "rights",
    "Rights",
    "Of the three service accounts, without those for `stuckAfterS` and `vfResource`.",
)
RIGHTS_OK = RIGHTS.ok()
RIGHT_MISSING = RIGHTS.error("missing")
NO_ACCOUNT = RIGHTS.warning("no-account")

POLICIES = Subject(
    "policies",
    "Admission policies",
    "The [policies](policies.md) `annotation` and `own-node`; `extender` if the account "
    "`k8s-rdma-extender` exists; `scheduler-name` if only a second scheduler asks the extender; "
    "`claims`, `claim-caps`, `one-pod` and `slices` if nodes publish PFs for [claims](dra.md).",
)
POLICIES_OK = POLICIES.ok()
POLICY_MISSING = POLICIES.warning("missing")
POLICIES_TOO_OLD = POLICIES.note("too-old")

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

CRD_NAME = f"{PLURAL}.{GROUP}"
_POLICIES_SINCE = 30
_OURS = "k8s-rdma"


@dataclass(frozen=True, slots=True, kw_only=True)
class CrdFacts:
    """The CustomResourceDefinition in the cluster.

    found: the object, if it exists.
    expected: the fields of status that agents write.
    needed: whether the extender reads RdmaNodes, or agents publish them, if that is known.
    """

    found: Mapping[str, Any] | None
    expected: frozenset[str]
    needed: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """A verb on a resource of an API group, in a namespace or in all.

    name: the object; empty for all objects.
    """

    group: str
    resource: str
    verb: str
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        scope = f" in {self.namespace}" if self.namespace else ""
        named = f" {self.name}" if self.name else ""
        group = f".{self.group}" if self.group else ""
        return f"{self.verb} {self.resource}{group}{named}{scope}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RightsFacts:
    """The account of each process, `namespace/name` (empty if it does not exist), and missing rights."""

    processes: tuple[tuple[str, str, tuple[Right, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFacts:
    """Admission policies of the cluster.

    api: the API server's version.
    bound: policies that exist and are bound.
    expected: the policies in deploy/policies.
    """

    api: str
    bound: frozenset[str]
    expected: frozenset[str]


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


@CRD.check(CrdFacts)
def check_crd(facts: CrdFacts) -> Iterator[Finding]:
    """Check that the CRD accepts RdmaNodes as this version publishes them."""
    apply = "kubectl apply -f deploy/crds/rdmanodes.yaml"
    if facts.found is None:
        if facts.needed is False:
            yield CRD_UNUSED("not needed with source: http", about=CRD_NAME, source="API server")
        else:
            yield CRD_MISSING(
                "does not exist: no node can publish its state",
                about=CRD_NAME,
                source=f"customresourcedefinitions {CRD_NAME}",
                expected=f"{VERSION}, where agents publish or the extender has source: crd",
                fix=apply,
            )
        return
    versions = facts.found.get("spec", {}).get("versions", ())
    served = next(
        (version for version in versions if version.get("name") == VERSION and version.get("served")), None
    )
    if served is None:
        names = ", ".join(str(version.get("name")) for version in versions)
        yield CRD_VERSION(
            f"serves {names}", about=CRD_NAME, source="spec.versions", expected=f"{VERSION}", fix=apply
        )
        return
    schema = served.get("schema", {}).get("openAPIV3Schema", {}).get("properties", {})
    properties = schema.get("status", {}).get("properties", {})
    if missing := sorted(facts.expected - set(properties)):
        yield CRD_FIELDS(
            f"is older: drops {', '.join(missing)} from agents' reports",
            about=CRD_NAME,
            source="spec.versions[].schema",
            expected="the definition of this version",
            fix=apply,
        )
    else:
        yield CRD_OK(f"{VERSION} is served, with all fields", about=CRD_NAME, source="spec.versions")


@RIGHTS.check(RightsFacts)
def check_rights(facts: RightsFacts) -> Iterator[Finding]:
    """Check the rights of each process that calls the API server."""
    for process, account, missing in facts.processes:
        if not account:
            yield NO_ACCOUNT(
                f"no service account k8s-rdma-{process}",
                about=process,
                source="serviceaccounts",
                expected=f"deploy/rbac/{process}.yaml, where the process has inCluster",
                fix=f"kubectl apply -f deploy/rbac/{process}.yaml",
            )
        elif missing:
            yield RIGHT_MISSING(
                f"may not: {'; '.join(map(str, missing))}",
                about=f"{process} ({account})",
                source="SubjectAccessReview",
                expected=f"the role of deploy/rbac/{process}.yaml",
                fix=f"kubectl apply -f deploy/rbac/{process}.yaml",
            )
        else:
            yield RIGHTS_OK(
                "may do all that it needs", about=f"{process} ({account})", source="SubjectAccessReview"
            )


@POLICIES.check(PolicyFacts)
def check_policies(facts: PolicyFacts) -> Iterator[Finding]:
    """Check that the policies are bound; Kubernetes has ValidatingAdmissionPolicies from 1.30 on."""
    minor = minor_of(facts.api)
    if minor is not None and minor < _POLICIES_SINCE:
        yield POLICIES_TOO_OLD(
            f"{facts.api} has none: agents may write other nodes' objects, the extender any pod; "
            "malformed annotations fail only at scheduling",
            source="/version",
        )
        return
    for name in sorted(facts.expected - facts.bound):
        yield POLICY_MISSING(
            "missing or not bound",
            about=name,
            source="validatingadmissionpolicies, validatingadmissionpolicybindings",
            expected="the policy and its binding",
            fix=f"kubectl apply -f deploy/policies/{name.removeprefix(f'{_OURS}-')}.yaml, or "
            "the chart's policies.enabled: true",
        )
    if facts.expected <= facts.bound:
        yield POLICIES_OK(f"{len(facts.expected)} are bound", source="validatingadmissionpolicybindings")


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


_COORDINATION, _POLICY = "coordination.k8s.io", "policy"
_WATCH = ("list", "watch")

ACCOUNTS: Mapping[str, str] = {
    "agent": "k8s-rdma-agent",
    "extender": "k8s-rdma-extender",
    "device-plugin": "k8s-rdma-device-plugin",
}
"""The service account of each process, by its name."""
OPTIONAL = frozenset({"device-plugin"})
"""Processes that do their work without an account: Events are all that they need one for."""


def rights(process: str, *, leases: str, lease_of_binder: tuple[str, str], crd: bool) -> tuple[Right, ...]:
    """Return the rights that a process needs, without those of optional settings (stuckAfterS, vfResource).

    leases: the namespace of nodes' Leases.
    lease_of_binder: namespace and name of the extender's Lease.
    crd: whether nodes publish themselves, and the extender reads that.
    """
    match process:
        case "agent":
            return (*_agent(), *(_publisher(leases) if crd else ()))
        case "extender":
            return (*_extender(*lease_of_binder), *(_reader(leases) if crd else ()))
        case _:
            return tuple(_events("default"))


def _agent() -> Iterator[Right]:
    yield from _rights("", "pods", ("get", *_WATCH, "patch"))
    yield from _events()


def _publisher(leases: str) -> Iterator[Right]:
    yield from _rights("", "nodes", _WATCH)
    yield from _rights(GROUP, PLURAL, ("get", "list", "create"))
    yield Right(group=GROUP, resource=f"{PLURAL}/status", verb="update")
    yield from _rights(_COORDINATION, "leases", ("get", "create", "patch", "delete"), leases)


def _extender(namespace: str, name: str) -> Iterator[Right]:
    yield from _rights("", "pods", ("get", *_WATCH, "patch"))
    yield Right(group="", resource="pods/binding", verb="create")
    yield from _rights("", "nodes", (*_WATCH, "patch"))
    yield from _rights(_POLICY, "poddisruptionbudgets", _WATCH)
    for api in GangApi:
        yield Right(group=api.value, resource="podgroups", verb="get")
    yield Right(group=_COORDINATION, resource="leases", verb="create", namespace=namespace)
    for verb in ("get", "patch"):
        yield Right(group=_COORDINATION, resource="leases", verb=verb, namespace=namespace, name=name)


def _reader(leases: str) -> Iterator[Right]:
    yield from _rights(GROUP, PLURAL, _WATCH)
    yield from _rights(_COORDINATION, "leases", _WATCH, leases)


def _events(namespace: str = "") -> Iterator[Right]:
    yield from _rights("", "events", ("create", "patch"), namespace)


def _rights(group: str, resource: str, verbs: tuple[str, ...], namespace: str = "") -> Iterator[Right]:
    for verb in verbs:
        yield Right(group=group, resource=resource, verb=verb, namespace=namespace)
