"""The form that every object of Kubernetes has, for documents that a server of any kind may have sent."""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from k8s_rdma.kube.errors import ApiUncertainError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

_TEXTS = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")


def time_in_header(date: str) -> datetime | None:
    """Return the time in an HTTP header, if it is a time with a time zone."""
    try:
        found = parsedate_to_datetime(date)
    except ValueError:
        return None
    return found if found.tzinfo is not None else None


def require_metadata(item: Mapping[str, Any], subject: str) -> None:
    """Require the fields that identify every object. ApiUncertainError names the field."""
    metadata = item.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(metadata, dict) or not isinstance(name, str) or not name:
        msg = f"{subject}: metadata.name: expected the name of an object"
        raise ApiUncertainError(msg)
    for field_name in _TEXTS:
        if not isinstance(metadata.get(field_name, ""), str | None):
            msg = f"{subject}: {name}: metadata.{field_name}: expected a text"
            raise ApiUncertainError(msg)
    for field_name in ("labels", "annotations"):
        texts = metadata.get(field_name)
        if not isinstance(texts, dict | None) or not all(
            isinstance(text, str) for text in (texts or {}).values()
        ):
            msg = f"{subject}: {name}: metadata.{field_name}: expected texts"
            raise ApiUncertainError(msg)


def require_form(item: Mapping[str, Any], subject: str) -> None:
    """Require the form that every object of Kubernetes has. ApiUncertainError names the field."""
    require_metadata(item, subject)
    name = item["metadata"]["name"]
    for field_name in ("spec", "status", "data"):
        if not isinstance(item.get(field_name), dict | None):
            msg = f"{subject}: {name}: {field_name}: expected an object"
            raise ApiUncertainError(msg)
