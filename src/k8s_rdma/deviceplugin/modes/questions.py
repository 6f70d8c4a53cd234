"""Refusals of kubelet's questions."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from k8s_rdma.errors import K8sRdmaError, MalformedError, Reason

if TYPE_CHECKING:
    from k8s_rdma.deviceplugin.mode import Choice


def refuse(resource: str, device: str, why: str) -> NoReturn:
    """Refuse to give a device (`UNKNOWN_DEVICE`)."""
    msg = f"{resource}: {device} cannot be given: {why}"
    raise K8sRdmaError(msg, reason=Reason.UNKNOWN_DEVICE)


def check(resource: str, choice: Choice) -> None:
    """Refuse what has no answer; MalformedError in the words of kubelet's API."""
    available, wanted = set(choice.available), set(choice.must_include)
    if missing := sorted(wanted - available):
        msg = f"{resource}: must_include_deviceIDs: {missing[0]} is not among available_deviceIDs"
        raise MalformedError(msg)
    if not len(wanted) <= choice.size <= len(available):
        msg = (
            f"{resource}: allocation_size: {choice.size} devices, with {len(wanted)} that must be among them"
            f" and {len(available)} available"
        )
        raise MalformedError(msg)
