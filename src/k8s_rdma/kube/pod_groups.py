"""PodGroups, by any version of their API that the API server serves.

Kubernetes 1.36 serves `scheduling.k8s.io/v1alpha2` alone, 1.37 serves v1beta1 and v1alpha3, each only if its
feature gate is on. Discovery finds the version: once, and again after an answer that there is no such object,
because an API server that does not serve the version any more answers so as well.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgspec

from k8s_rdma.core.pod_group import PodGroup
from k8s_rdma.core.types import Gang, GangApi
from k8s_rdma.kube.documents import named_errors, segment
from k8s_rdma.kube.errors import ApiRefusedError, PodGroupVersionError
from k8s_rdma.wire.pod_group import (
    COSCHEDULING_VERSION,
    PLURAL,
    VERSIONS,
    decode_coscheduling_group,
    decode_pod_group,
    first_readable,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    import httpx2

    from k8s_rdma.kube.documents import Documents


_NOT_FOUND = 404
_GROUP_PATH = f"apis/{GangApi.KUBERNETES.value}"

_AGAIN_S = 10.0
"""Discovery is not asked again within that: pods may wait for PodGroups that are not made yet."""


class _GroupVersion(msgspec.Struct, frozen=True):
    version: str


class _ApiGroup(msgspec.Struct, frozen=True):
    versions: tuple[_GroupVersion, ...] = ()


class _ApiResource(msgspec.Struct, frozen=True):
    name: str


class _ApiResourceList(msgspec.Struct, frozen=True):
    resources: tuple[_ApiResource, ...] = ()


_group = msgspec.json.Decoder(_ApiGroup)
_resources = msgspec.json.Decoder(_ApiResourceList)


class PodGroups:
    """Reads PodGroups, and remembers which version of their API is served. clock: seconds, monotonic."""

    def __init__(self, http: httpx2.AsyncClient, *, clock: Callable[[], float] = monotonic) -> None:
        self._http = http
        self._clock = clock
        self._version = ""
        self._served: list[str] = []
        self._discovered_at = float("-inf")
        self._discovery = asyncio.Lock()

    async def get(self, gang: Gang) -> PodGroup:
        """`GET /apis/GROUP/VERSION/namespaces/NS/podgroups/NAME`; errors as of `ClusterApi.get_pod_group`."""
        operation = f"get podgroup {gang} of {gang.api.value}"
        with named_errors(operation):
            if gang.api is GangApi.COSCHEDULING:
                return await self._coscheduling_group(gang)
            version = self._version or await self._discover()
            found = await self._read(pod_group_path(gang, version))
            if found is None and (discovered := await self._discover()) != version:
                found = await self._read(pod_group_path(gang, discovered))
            if found is not None:
                return decode_pod_group(found)
        msg = f"{operation}: there is none (HTTP {_NOT_FOUND})"
        raise ApiRefusedError(msg, status=_NOT_FOUND)

    async def _coscheduling_group(self, gang: Gang) -> PodGroup:
        """Read the group of a label; without a group it makes no gang, because its pods are not held back."""
        found = await self._read(pod_group_path(gang, COSCHEDULING_VERSION))
        return PodGroup() if found is None else decode_coscheduling_group(found)

    async def _discover(self) -> str:
        """Ask for the served version, unless that was asked just now; PodGroupVersionError if unknown."""
        async with self._discovery:
            if self._clock() - self._discovered_at >= _AGAIN_S:
                self._served = [version async for version in self._served_versions()]
                self._discovered_at = self._clock()
            self._version = first_readable(self._served)
            if not self._version:
                raise PodGroupVersionError(served=tuple(self._served), readable=VERSIONS)
            return self._version

    async def _served_versions(self) -> AsyncIterator[str]:
        """Yield the versions of the API group in which there are PodGroups."""
        group = await self._read(_GROUP_PATH)
        for listed in _group.decode(group).versions if group else ():
            resources = await self._read(f"{_GROUP_PATH}/{listed.version}")
            if resources and any(kind.name == PLURAL for kind in _resources.decode(resources).resources):
                yield listed.version

    async def _read(self, path: str) -> bytes | None:
        """Read a document, if it exists."""
        reply = await self._http.get(path)
        return None if reply.status_code == _NOT_FOUND else reply.raise_for_status().content


def served_versions(api: Documents) -> tuple[str, ...]:
    """Return the versions of Kubernetes' own API in which there are PodGroups. API_ERRORS."""
    group = api.get(f"/{_GROUP_PATH}") or {}
    versions = [str(listed.get("version")) for listed in group.get("versions") or ()]
    return tuple(version for version in versions if _has_pod_groups(api, version))


def list_pod_groups(api: Documents) -> Iterator[dict[str, Any]]:
    """Yield the PodGroups of Kubernetes' own API, by the version that `PodGroups` would use; API_ERRORS.

    PodGroupVersionError if no version is served that is known here.
    """
    served = served_versions(api)
    version = first_readable(served)
    if not version:
        raise PodGroupVersionError(served=served, readable=VERSIONS)
    yield from api.items(f"/{_GROUP_PATH}/{version}/{PLURAL}", any_form=True)


def _has_pod_groups(api: Documents, version: str) -> bool:
    resources = (api.get(f"/{_GROUP_PATH}/{version}") or {}).get("resources") or ()
    return any(kind.get("name") == PLURAL for kind in resources)


def pod_group_path(gang: Gang, version: str) -> str:
    """Return the path of a PodGroup, without a slash at its beginning."""
    namespace, name = segment(gang.namespace), segment(gang.name)
    return f"apis/{gang.api.value}/{version}/namespaces/{namespace}/{PLURAL}/{name}"
