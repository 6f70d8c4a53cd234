"""The MACs and GUIDs that pods of this node ask for, held in the cluster while pods or claims have them.

An address is held by a Lease of its name: the API server makes an object of a name once, so two nodes never
hold one address, whichever way their pods ask for it. A MAC must also be in no other node's report: PFs, and
VFs whose pods ask for none, have theirs without a Lease. A Lease is deleted when no prepared claim and no
attachment of the node asks for its address any more, and with the Node object.
docs/adr/0027-addresses-are-leases.md.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, NoReturn, Protocol

import structlog

from k8s_rdma.agent.cluster.publisher import Reports
from k8s_rdma.core.macs import is_mac
from k8s_rdma.core.namespace_policy import address_number
from k8s_rdma.errors import K8sRdmaError, MalformedError, Reason
from k8s_rdma.kube.errors import API_ERRORS, ApiRefusedError
from k8s_rdma.kube.held_leases import HeldLeases
from k8s_rdma.kube.informer import REAL_TIME, Time
from k8s_rdma.linux.atomic_file import write_file
from k8s_rdma.process import wait_for_first
from k8s_rdma.wire.address_leases import kind, lease_name
from k8s_rdma.wire.nesting import load
from k8s_rdma.wire.node_facts import reported_macs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterable
    from pathlib import Path

    from k8s_rdma.core.types import NodeName
    from k8s_rdma.kube.published_api import AddressesApi

    Requested = Callable[[], frozenset[str]]

_log = structlog.get_logger()

API_TIMEOUT_S = 10.0
"""The longest wait for the API server within an ADD or a preparation."""

WAIT_S, POLL_S = 5.0, 0.5
"""The time for which an address of another node is tried again, and the interval: its pod may just have
moved."""

CHECK_S = 60.0
"""The interval at which Leases are compared with the ledger, and failures tried again."""

DURATION_S = 3600
"""The duration that Leases name; they end with the claim, not with time."""

_CONFLICT, _NOT_FOUND = 409, 404


class AddressRegistry(Protocol):
    """Holds addresses for this node's pods."""

    def holding(self, addresses: Collection[str], *, by_claim: bool) -> AbstractAsyncContextManager[None]:
        """Hold MACs and GUIDs while a prepared claim or a receipt that asks for them is written.

        by_claim: whether a claim asks for them, which no extender has judged.
        K8sRdmaError: `ADDRESS_IN_USE` if another node has one; for a claim also `API_FAILURE` if that cannot
        be known.
        """
        ...

    def note_end(self) -> None:
        """Note that a prepared claim or an attachment has ended."""
        ...

    def problems(self) -> tuple[str, ...]:
        """Describe the addresses that pods of this node have and do not hold, one sentence each."""
        ...

    async def run(self, requested: Requested, reports: PublishedReports) -> NoReturn:
        """Hold the addresses that claims and attachments ask for, and release others, until cancelled.

        requested: returns the addresses that they ask for at the moment.
        """
        ...


class PublishedReports(Reports, Protocol):
    """A source of reports that also publishes them."""

    async def publish(self) -> None:
        """Publish if anything differs from the last report."""
        ...


class SingleNodeAddresses:
    """Implements `AddressRegistry` for a node without others: its ledger alone judges."""

    @asynccontextmanager
    async def holding(self, addresses: Collection[str], *, by_claim: bool) -> AsyncIterator[None]:  # noqa: ARG002 - the Protocol's
        """Hold them: there is no other node."""
        yield

    def note_end(self) -> None:
        """Ignore the end."""

    def problems(self) -> tuple[str, ...]:
        """Return no description: there is no other node."""
        return ()

    async def run(self, requested: Requested, reports: PublishedReports) -> NoReturn:  # noqa: ARG002 - the Protocol's
        """Wait until cancelled."""
        await asyncio.Event().wait()
        raise AssertionError


class UnknownAddresses(SingleNodeAddresses):
    """Implements `AddressRegistry` for an agent without credentials: it sees no other node."""

    @asynccontextmanager
    async def holding(self, addresses: Collection[str], *, by_claim: bool) -> AsyncIterator[None]:
        """Refuse a claim that asks for any; those of annotations were judged by the extender."""
        if by_claim and addresses:
            msg = (
                f"{_shown(min(addresses))}: whether another node has it is not known, as the agent has no "
                "credentials; set inCluster or kubeconfig in its configuration, or leave mac and guid out"
            )
            raise K8sRdmaError(msg, reason=Reason.API_FAILURE)
        yield


class HeldAddresses:
    """Implements `AddressRegistry` by Leases. file: remembers them over restarts."""

    def __init__(
        self, api: AddressesApi, node: NodeName, namespace: str, file: Path, time: Time = REAL_TIME
    ) -> None:
        """Send no request yet."""
        self._api = api
        self._leases = HeldLeases(api, node, namespace, DURATION_S)
        self._node = node
        self._namespace = namespace
        self._file = file
        self._time = time
        self._lock = asyncio.Lock()
        self._pending: Counter[str] = Counter()
        self._held_addresses: set[str] = set()
        self._recorded: set[str] | None = None
        self._refused: dict[str, str] = {}
        self._ended = asyncio.Event()

    def problems(self) -> tuple[str, ...]:
        """Implement `AddressRegistry.problems`."""
        return tuple(self._refused.values())

    def note_end(self) -> None:
        """Have `run` compare Leases with the ledger now."""
        self._ended.set()

    @asynccontextmanager
    async def holding(self, addresses: Collection[str], *, by_claim: bool) -> AsyncIterator[None]:
        """Implement `AddressRegistry.holding`; wait a short while for an address that another node has."""
        if not addresses:
            yield
            return
        self._pending.update(addresses)
        try:
            try:
                await self._hold_in_time(addresses, by_claim=by_claim)
            except K8sRdmaError as error:
                if by_claim or error.reason is Reason.ADDRESS_IN_USE:
                    raise
                _log.warning("address_not_held", why=error.message)  # the extender judged it; `run` will
            yield
        finally:
            self._pending -= Counter(addresses)
            self.note_end()

    async def _hold_in_time(self, addresses: Collection[str], *, by_claim: bool) -> None:
        deadline_s = self._time.monotonic() + WAIT_S
        while True:
            try:
                async with self._lock:
                    for address in sorted(addresses):
                        await self._hold(address, by_claim=by_claim)
            except K8sRdmaError as error:
                if error.reason is not Reason.ADDRESS_IN_USE or self._time.monotonic() >= deadline_s:
                    raise
            else:
                return
            await self._time.pause(POLL_S)

    async def _hold(self, address: str, *, by_claim: bool) -> None:
        """Hold an address; errors as `holding`. The bind compared those of annotations with reports."""
        try:
            async with asyncio.timeout(API_TIMEOUT_S):
                if address not in self._held_addresses:
                    await self._take(address)
                if by_claim and is_mac(address):
                    await self._require_unreported(address)
        except (TimeoutError, *API_ERRORS) as error:
            why = str(error) or f"no answer from the API server in {API_TIMEOUT_S:g} s"
            msg = f"{_shown(address)}: whether another node has it is not known: {why}; try again"
            raise K8sRdmaError(msg, reason=Reason.API_FAILURE) from error
        self._held_addresses.add(address)
        self._refused.pop(address, None)

    async def _take(self, address: str) -> None:
        """Make the Lease, unless it is this node's. The file has the address before there is one."""
        await self._note({address}, set())
        name = lease_name(address)
        holder = await self._leases.take(name) or "another one"
        if holder != self._node:
            msg = f"{_shown(address)} is in use on node {holder} (Lease {self._namespace}/{name})"
            raise K8sRdmaError(msg, reason=Reason.ADDRESS_IN_USE)

    async def _require_unreported(self, mac: str) -> None:
        """Raise K8sRdmaError (`ADDRESS_IN_USE`) for a MAC that another node reports of a PF or VF."""
        number = address_number(mac)
        found = await self._api.find_rdma_node(
            lambda view: view.node != self._node and _reports(view.status, number)
        )
        if found is not None:
            msg = f"{_shown(mac)} is that of a PF or VF of node {found.node}"
            raise K8sRdmaError(msg, reason=Reason.ADDRESS_IN_USE)

    async def run(self, requested: Requested, reports: PublishedReports) -> NoReturn:
        """Implement `AddressRegistry.run`."""
        while True:
            report, problems = reports.now(), self.problems()
            self._ended.clear()
            await self.compare(requested)
            if problems != self.problems():
                await reports.publish()
            await wait_for_first(
                reports.wait_for_change(report), self._ended.wait(), self._time.pause(CHECK_S)
            )

    async def compare(self, requested: Requested) -> None:
        """Hold the requested addresses, and release others; a failed one is tried again the next time.

        requested: as for `run`.
        """
        await self._load()
        for address in sorted(requested() - self._held_addresses):
            async with self._lock:
                try:
                    if address in requested():
                        await self._hold(address, by_claim=False)
                except K8sRdmaError as error:
                    self._note_refused(address, error)
        for address in sorted((self._recorded or set()) - requested()):
            async with self._lock:
                if address not in requested() and not self._pending[address]:
                    await self._release(address)
        self._refused = {address: why for address, why in self._refused.items() if address in requested()}

    def _note_refused(self, address: str, error: K8sRdmaError) -> None:
        if address not in self._refused:
            _log.warning("address_not_held", address=address, why=error.message)
        if error.reason is Reason.ADDRESS_IN_USE:
            self._refused[address] = f"{error.message}, and a pod of this node has it, too"

    async def _release(self, address: str) -> None:
        """Delete the Lease if it is this node's. After a failure the address stays noted."""
        name = lease_name(address)
        self._held_addresses.discard(address)
        try:
            async with asyncio.timeout(API_TIMEOUT_S):
                lease = await self._api.get_lease(self._namespace, name)
                if lease is not None and lease.holder == self._node:
                    await self._api.delete_lease(lease)
        except ApiRefusedError as refused:
            if refused.status not in (_CONFLICT, _NOT_FOUND):
                _log.warning("address_not_released", address=address, why=refused.message)
                return
        except (TimeoutError, *API_ERRORS) as error:
            _log.warning("address_not_released", address=address, why=str(error))
            return
        await self._note(set(), {address})

    async def _load(self) -> set[str]:
        if self._recorded is None:
            self._recorded = await asyncio.to_thread(self._read)
        return self._recorded

    def _read(self) -> set[str]:
        try:
            return {str(address) for address in load(self._file.read_text())}
        except FileNotFoundError:
            return set()
        except (OSError, ValueError, TypeError) as error:
            _log.warning("held_addresses_unreadable", file=str(self._file), why=str(error))
            return set()

    async def _note(self, added: Iterable[str], removed: Iterable[str]) -> None:
        """Write the file. K8sRdmaError (`LEDGER_FAILURE`) when that fails: a crash would leave a Lease."""
        noted = await self._load()
        after = (noted | set(added)) - set(removed)
        if after == noted:
            return
        try:
            await asyncio.to_thread(write_file, self._file, json.dumps(sorted(after)).encode())
        except OSError as error:
            msg = f"{self._file}: {error.strerror or error}"
            raise K8sRdmaError(msg, reason=Reason.LEDGER_FAILURE) from error
        self._recorded = after


def _shown(address: str) -> str:
    return f"{kind(address).upper()} {address}"


def _reports(status: bytes, mac: int) -> bool:
    """Report whether a node's status has a MAC; one that no agent publishes is not evidence about others."""
    try:
        return reported_macs(status).first_index_in([mac]) is not None
    except MalformedError:
        return False
