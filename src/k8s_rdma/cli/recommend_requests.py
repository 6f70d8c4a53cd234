"""Annotations and ResourceClaimTemplates with suggested rates, for those who own the workloads to apply."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from k8s_rdma.cli.rates import names_in_pod
from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.kube.documents import segment
from k8s_rdma.wire.annotation import format_request, read_request, request_name, request_text
from k8s_rdma.wire.claims import DRIVER
from k8s_rdma.wire.resource_claim import BANDWIDTH
from k8s_rdma.wire.resource_slice import quantity_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from k8s_rdma.core.recommendation import WorkloadAdvice, WorkloadName
    from k8s_rdma.core.request import InterfaceRequest
    from k8s_rdma.kube.documents import Documents
    from k8s_rdma.kube.pod_owners import OwnedPod

_API = "/apis/resource.k8s.io/v1/namespaces"


class SuggestedRates(NamedTuple):
    """Rates of an interface, in Mb/s; without a new cap the cap stays as it is."""

    min_tx_rate_mbps: int
    max_tx_rate_mbps: int | None


def suggested_requests(
    api: Documents,
    advice: Sequence[WorkloadAdvice],
    pods: Mapping[tuple[str, str], OwnedPod],
    warn: Callable[[str], object],
) -> Iterator[dict[str, Any]]:
    """Yield the better request of each workload. warn: takes a sentence for each that cannot be written."""
    for name, rows in _by_workload(advice).items():
        rates = {
            row.interface: SuggestedRates(minimum, row.suggestion.max_tx_rate_mbps)
            for row in rows
            if (minimum := row.suggestion.min_tx_rate_mbps) is not None
        }
        if not rates:
            warn(f"{name.text}: there is no suggestion")
            continue
        pod = pods[name.namespace, rows[0].pods[0].use.holder.pod]
        missing = dict(rates)
        try:
            if pod.asks_by_annotation:
                yield _annotation(name, pod, missing)
            yield from _claims(api, pod, missing)
        except K8sRdmaError as error:
            warn(f"{name.text}: {error.message}")
        else:
            for interface in missing:
                warn(f"{name.text}: {interface}: what it was asked for by is not known; change it by hand")


def _by_workload(advice: Sequence[WorkloadAdvice]) -> dict[WorkloadName, list[WorkloadAdvice]]:
    found: dict[WorkloadName, list[WorkloadAdvice]] = {}
    for row in advice:
        found.setdefault(row.workload, []).append(row)
    return found


def _annotation(name: WorkloadName, pod: OwnedPod, missing: dict[str, SuggestedRates]) -> dict[str, Any]:
    """Return the pod's annotation with other rates; take its interfaces out of those that are missing."""
    key = request_name(pod.annotations)
    request = read_request(request_text(pod.annotations), strict=False, name=key).request
    names = names_in_pod(pod.annotations)
    if len(names) != len(request.interfaces):
        names = [interface.options.name or "" for interface in request.interfaces]
        if not any(names):  # the agent's names, in the order of the request
            names = [f"rdma{index}" for index in range(len(names))]
    interfaces = tuple(
        _with_rates(interface, missing.pop(ifname)) if ifname in missing else interface
        for ifname, interface in zip(names, request.interfaces, strict=True)
    )
    text = format_request(replace(request, interfaces=interfaces))
    read_request(text, strict=False, name=key)
    return {"workload": name.text, "annotations": {key: text}}


def _with_rates(interface: InterfaceRequest, rates: SuggestedRates) -> InterfaceRequest:
    maximum = rates.max_tx_rate_mbps
    return replace(
        interface,
        min_tx_rate_mbps=rates.min_tx_rate_mbps,
        max_tx_rate_mbps=interface.max_tx_rate_mbps if maximum is None else maximum,
    )


def _claims(api: Documents, pod: OwnedPod, missing: dict[str, SuggestedRates]) -> Iterator[dict[str, Any]]:
    """Yield the templates of the pod's claims, and claims without one, with other rates."""
    names = {status.get("name"): status.get("resourceClaimName") for status in pod.claim_statuses}
    for entry in pod.claims:
        template = entry.get("resourceClaimTemplateName")
        claim_name = entry.get("resourceClaimName") or names.get(entry.get("name"))
        if not missing or not isinstance(claim_name, str):
            continue
        claim = api.get(f"{_API}/{segment(pod.namespace)}/resourceclaims/{segment(claim_name)}")
        requests = _requests(claim or {})
        rates = {requests[ifname]: missing.pop(ifname) for ifname in list(missing) if ifname in requests}
        if not rates:
            continue
        document = claim or {}
        if isinstance(template, str):
            path = f"{_API}/{segment(pod.namespace)}/resourceclaimtemplates/{segment(template)}"
            document = api.get(path) or {}
        yield _with_claimed_rates(document, rates)


def _requests(claim: Mapping[str, Any]) -> dict[str, str]:
    """Map interfaces, by their names in the pod, to the names of the claim's requests."""
    status = claim.get("status") or {}
    results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()
    requests = {
        (result.get("pool"), result.get("device"), result.get("shareID")): str(result.get("request"))
        for result in results
        if result.get("driver") == DRIVER
    }
    return {
        str((device.get("networkData") or {}).get("interfaceName")): requests[key].partition("/")[0]
        for device in status.get("devices") or ()
        if (key := (device.get("pool"), device.get("device"), device.get("shareID"))) in requests
    }


def _with_claimed_rates(document: Mapping[str, Any], rates: Mapping[str, SuggestedRates]) -> dict[str, Any]:
    """Return a claim or a template with other rates, without the fields that the API server has added."""
    changed = copy.deepcopy(dict(document))
    meta = changed.get("metadata") or {}
    named = {key: meta[key] for key in ("name", "namespace", "labels", "annotations") if key in meta}
    changed["metadata"] = named
    changed.pop("status", None)
    spec = changed.get("spec") or {}
    devices = (spec.get("spec") or spec).get("devices") or {}
    for request in devices.get("requests") or ():
        found = rates.get(request.get("name"))
        if found is None:
            continue
        for exact in (request.get("exactly"), *(request.get("firstAvailable") or ())):
            if isinstance(exact, dict):
                _set_bandwidth(exact, found.min_tx_rate_mbps)
    for config in devices.get("config") or ():
        caps = {rates[name].max_tx_rate_mbps for name in config.get("requests") or rates if name in rates} - {
            None
        }
        opaque = config.get("opaque") or {}
        if caps and opaque.get("driver") == DRIVER:
            _set_cap(opaque.get("parameters") or {}, 0 if 0 in caps else max(filter(None, caps)))
    return changed


def _set_bandwidth(exact: dict[str, Any], mbps: int) -> None:
    capacity = exact.get("capacity") or {}
    requests = {key: value for key, value in (capacity.get("requests") or {}).items() if key != BANDWIDTH}
    if mbps:
        requests[BANDWIDTH] = quantity_of(mbps)
    if requests:
        exact["capacity"] = {**capacity, "requests": requests}
    else:
        exact.pop("capacity", None)


def _set_cap(parameters: dict[str, Any], mbps: int) -> None:
    """Change a cap if there is one; an absent cap stays absent."""
    if "maxTxRate" in parameters:
        if mbps:
            parameters["maxTxRate"] = quantity_of(mbps)
        else:
            del parameters["maxTxRate"]
