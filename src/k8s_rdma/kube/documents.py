"""Documents of the API server as they are, for who looks at many kinds of objects once: the doctor.

Through lightkube's connection, which knows the forms that credentials have.
"""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Self

import httpx2
from lightkube import Client as LightkubeClient

from k8s_rdma.kube.api import ApiRefusedError
from k8s_rdma.kube.calls import named_errors
from k8s_rdma.kube.credentials import authenticate, credentials, usable_credentials

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


_PAGE = 500


class Documents:
    """Objects as JSON. Blocking; of one thread. A context manager."""

    def __init__(self, kubeconfig: str | None = None, *, timeout_s: float = 10.0) -> None:
        """Connect by a kubeconfig file, or as `kube.credentials` finds one.

        MalformedError when there is no such configuration.
        """
        with usable_credentials(kubeconfig):
            config = credentials(kubeconfig)
            self._client = LightkubeClient(config, timeout=httpx2.Timeout(timeout_s))
        self._http: httpx2.Client = self._client._client._client  # no other way in
        authenticate(self._http, config.user, timeout_s=timeout_s)
        self._now: datetime | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    @property
    def url(self) -> str:
        """The URL of the API server."""
        return str(self._http.base_url).rstrip("/")

    def now(self) -> datetime:
        """The API server's clock, to the second, by the latest answer; ours where it tells none."""
        return self._now or datetime.now(UTC)

    def get(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any] | None:
        """Read the document at a path; None where there is none (404). ApiRefusedError and the like."""
        try:
            with named_errors(f"get {path}"):
                return self._document(self._http.get(path, params=dict(query or {})))
        except ApiRefusedError as refused:
            if refused.status == 404:
                return None
            raise

    def items(self, path: str, query: Mapping[str, str] | None = None) -> Iterator[dict[str, Any]]:
        """The objects of a list, page by page; none where there is no such kind."""
        following = ""
        while True:
            continuation = {"continue": following} if following else {}
            document = self.get(path, {"limit": str(_PAGE), **(query or {}), **continuation})
            if document is None:
                return
            yield from document.get("items") or ()
            following = (document.get("metadata") or {}).get("continue", "")
            if not following:
                return

    def post(self, path: str, document: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a document that is posted and kept nowhere, such as an access review."""
        with named_errors(f"post {path}"):
            return self._document(self._http.post(path, json=dict(document)))

    def _document(self, response: httpx2.Response) -> dict[str, Any]:
        if date := response.headers.get("date"):
            self._now = parsedate_to_datetime(date)
        response.raise_for_status()
        found = response.json()
        if not isinstance(found, dict):
            msg = f"expected an object, got {type(found).__name__}"
            raise ValueError(msg)  # noqa: TRY004 - as the JSON decoder says it
        return found
