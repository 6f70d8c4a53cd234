"""Which devices of device plugins kubelet has given to a pod."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerDevices:
    """Of one resource and one container; ids as the resource's plugin listed them."""

    container: str
    resource: str
    ids: tuple[str, ...]
    numa_nodes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PodDevices:
    """Of all containers of a pod; kubelet's API knows no UIDs.

    Nor does it know init containers that run to their end: what they were given is seen only as far as it was
    given on to the pod's other containers (`pkg/kubelet/apis/podresources/server_v1.go`).
    """

    namespace: str
    name: str
    devices: tuple[ContainerDevices, ...] = ()

    def of(self, resource: str) -> tuple[str, ...]:
        """The devices of one resource, none twice, `mlx5_2` before `mlx5_10`.

        Kubelet itself names them in another order each time that it is asked.
        """
        ids = {each for held in self.devices if held.resource == resource for each in held.ids}
        return tuple(sorted(ids, key=_by_numbers))


def _by_numbers(device_id: str) -> tuple[list[str], list[int], str]:
    """Its words, then the numbers among them, then the id itself, so that no two are equal."""
    return re.split(r"[0-9]+", device_id), [int(each) for each in re.findall(r"[0-9]+", device_id)], device_id
