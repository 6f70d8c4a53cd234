"""Objects applied as Helm and kubectl do it, to the letter."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx2

    from cluster.control_plane import Json


class Applied:
    """Server-side apply: fields that there are not are refused, and warnings are failures."""

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self._http = http
        self._paths: dict[tuple[str, str], str] = {}

    async def apply(self, document: Json, *, dry_run: bool = False) -> None:
        path = await self._path(document)
        options = {"fieldManager": "test", "fieldValidation": "Strict", "force": "true"}
        if dry_run:
            options["dryRun"] = "All"
        answer = await self._http.patch(
            path,
            params=options,
            content=json.dumps(document),
            headers={"Content-Type": "application/apply-patch+yaml"},
        )
        assert answer.status_code in {200, 201}, f"{path}: {answer.text}"
        assert "warning" not in answer.headers, f"{path}: {answer.headers['warning']}"

    async def _path(self, document: Json) -> str:
        version, kind, meta = document["apiVersion"], document["kind"], document["metadata"]
        group = f"/apis/{version}" if "/" in version else f"/api/{version}"
        if (version, kind) not in self._paths:
            for each in (await self._http.get(group)).json()["resources"]:
                scope = "/namespaces/{namespace}" if each["namespaced"] else ""
                if "/" not in each["name"]:
                    self._paths[version, each["kind"]] = f"{group}{scope}/{each['name']}/{{name}}"
        return self._paths[version, kind].format(namespace=meta.get("namespace"), name=meta["name"])
