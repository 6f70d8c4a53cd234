"""Attributes of VFs at home: recorded in receipts, and compared with those of VFs that returned."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from k8s_rdma.core.netdev_attributes import NONE_TRUSTED, Attributes, without_programs
from k8s_rdma.errors import KernelError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from k8s_rdma.agent.release import Released
    from k8s_rdma.core.kernel import Kernel
    from k8s_rdma.core.ledger import AllocatedInterface, Attachment
    from k8s_rdma.core.step import VfRef


class KnownHomes:
    """The attributes of VFs at home, as this process saw them last; used on the worker's thread.

    failures: of attachments whose VFs are not home or not as before, one sentence each. They are read from
        other threads, and replaced by each change.
    """

    def __init__(self, kernel: Kernel) -> None:
        """Know no VF yet."""
        self._kernel = kernel
        self._attributes: dict[VfRef, Attributes] = {}
        self.failures: Mapping[Attachment, str] = {}

    def noted(self, interfaces: Sequence[AllocatedInterface]) -> tuple[AllocatedInterface, ...]:
        """Return interfaces with the attributes of their VFs' homes.

        A VF has those with which it returned, so that later changes end before it is given
        (`core.step.CleanVf`); the first time, those that it has, without BPF programs. They stay unknown if
        it cannot be read.
        """
        found = []
        for interface in interfaces:
            home = replace(interface.home, attributes=self._attributes_of(interface.vf))
            found.append(replace(interface, home=home))
        return tuple(found)

    def returned(self, attachment: Attachment, released: Released) -> None:
        """Record the attributes of VFs that have returned as they were.

        A VF that is not as it was has a new netdev, which the host may still tune, for example by udev: its
        attributes are those that it has when it is given. One that cannot be read is perhaps not home: if its
        pod moved it on, it will return with all that the pod set. So it gets a new netdev before it is given.
        """
        self.forget_failure(attachment)
        for interface in released.interfaces:
            self._attributes.pop(interface.vf, None)
            if not interface.is_netdev:
                continue
            if interface.vf in released.as_at_home:
                self._attributes[interface.vf] = released.as_at_home[interface.vf]
            found = self._attributes_of(interface.vf)
            if found is None:
                self._attributes[interface.vf] = NONE_TRUSTED
            elif found != interface.home.attributes:
                del self._attributes[interface.vf]

    def failed(self, attachment: Attachment, error: KernelError) -> None:
        """Record that VFs of an attachment did not return as they were."""
        why = f"VFs of a pod that ended are not free: {error.details or error.message}"
        self.failures = {**self.failures, attachment: why}

    def forget_failure(self, attachment: Attachment) -> None:
        """Forget the failure of an attachment, if it has any."""
        if attachment in self.failures:
            self.failures = {key: why for key, why in self.failures.items() if key != attachment}

    def _attributes_of(self, vf: VfRef) -> Attributes | None:
        if vf not in self._attributes:
            try:
                self._attributes[vf] = without_programs(self._kernel.attributes(vf))
            except KernelError:
                return None
        return self._attributes[vf]
