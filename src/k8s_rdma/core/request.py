"""What a pod wants: interfaces, each with a reservation and a cap."""

from __future__ import annotations

from dataclasses import dataclass, field

from k8s_rdma.core.needs import Kind, kind_of
from k8s_rdma.core.options import NO_NEEDS, NO_OPTIONS, InterfaceOptions, Needs, needs_of
from k8s_rdma.core.policy import PfPolicy
from k8s_rdma.core.rates import MAX_RATE_MBPS, Enforce

MAX_INTERFACES = 1024
"""More than any node has: 8 PFs of 128 VFs (the most that today's drivers create on a PF)."""
_SOFTWARE = Enforce.SOFTWARE
"""To ask the enumeration for it takes longer than to compare, and interfaces are made by the thousand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InterfaceRequest:
    """One interface.

    min_tx_rate_mbps: reserved bandwidth, Mb/s (10^6 bit/s); 0 reserves nothing.
    max_tx_rate_mbps: cap, Mb/s; 0 is no cap.
    enforce: HARDWARE where nothing but the NIC will do, whatever the PF's configuration says; SOFTWARE where
        only that of a PF may be stricter.
    options: everything else, `NO_OPTIONS` itself where that is nothing. needs: what a PF must meet.
    """

    min_tx_rate_mbps: int = 0
    max_tx_rate_mbps: int = 0
    enforce: Enforce = Enforce.AUTO
    options: InterfaceOptions = NO_OPTIONS
    needs: Needs = field(init=False, repr=False, compare=False, default=NO_NEEDS)

    def __post_init__(self) -> None:
        """Hold the invariants that the wire layer has already reported in its own words."""
        by_software = self.enforce is _SOFTWARE
        if self.options is not NO_OPTIONS or by_software:
            object.__setattr__(self, "options", NO_OPTIONS if self.options == NO_OPTIONS else self.options)
            object.__setattr__(self, "needs", needs_of(self.options, software_caps=by_software))
        for rate in (self.min_tx_rate_mbps, self.max_tx_rate_mbps):
            if not 0 <= rate <= MAX_RATE_MBPS:
                msg = f"rate outside 0..{MAX_RATE_MBPS} Mb/s: {rate}"
                raise ValueError(msg)
        if 0 < self.max_tx_rate_mbps < self.min_tx_rate_mbps:
            msg = f"reservation {self.min_tx_rate_mbps} above cap {self.max_tx_rate_mbps} Mb/s"
            raise ValueError(msg)

    def __hash__(self) -> int:
        """Of the options where there are any: hashing so many fields is slow, and few requests have them."""
        options = None if self.options is NO_OPTIONS else self.options
        return hash((self.min_tx_rate_mbps, self.max_tx_rate_mbps, self.enforce, options))


@dataclass(frozen=True, slots=True)
class Shape:
    """What of a request decides where it can be placed; requests that differ in names alone have one shape.

    Made once a request, and not once a node: interfaces are a thousand, and so are nodes.

    kinds: the distinct ones, the largest reservation first, then the largest cap.
    kind_at: for each interface, in the request's order, which of these it is.
    """

    kinds: tuple[Kind, ...] = ()
    kind_at: tuple[int, ...] = ()
    policy: PfPolicy = PfPolicy.ANY
    devices: tuple[tuple[str, int], ...] = ()
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        """Hash once: shapes are looked up for every node."""
        object.__setattr__(self, "_hash", hash((self.kind_at, self.kinds)))

    def __hash__(self) -> int:
        """Of the interfaces: few requests differ in the policy alone, and an enumeration's hash is slow."""
        return self._hash

    @classmethod
    def of(
        cls,
        interfaces: tuple[InterfaceRequest, ...],
        policy: PfPolicy,
        devices: tuple[tuple[str, int], ...],
    ) -> Shape:
        """Number the kinds of interfaces."""
        index: dict[Kind, int] = {}
        drawn = [index.setdefault(kind_of(each), len(index)) for each in interfaces]
        kinds = sorted(index, key=lambda kind: (-kind.min_tx_rate_mbps, -kind.max_tx_rate_mbps, kind.enforce))
        place = {index[kind]: at for at, kind in enumerate(kinds)}
        return cls(tuple(kinds), tuple([place[number] for number in drawn]), policy, devices)


@dataclass(frozen=True, slots=True)
class Request:
    """The interfaces of a pod, in the order of its annotation; none means that it needs none.

    policy: how they are to be spread over PFs; of no interfaces, there is none.
    devices: how many of each extended resource its containers request, by name: on a node where one of these
        is a pool, the interfaces are those devices. Of no interfaces, there are none.
    shape: what of all that decides where it can be placed.
    """

    interfaces: tuple[InterfaceRequest, ...] = ()
    policy: PfPolicy = PfPolicy.ANY
    devices: tuple[tuple[str, int], ...] = ()
    shape: Shape = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Have one way to ask for nothing."""
        if not self.interfaces:
            object.__setattr__(self, "policy", PfPolicy.ANY)
            object.__setattr__(self, "devices", ())
        object.__setattr__(self, "shape", Shape.of(self.interfaces, self.policy, self.devices))

    def __hash__(self) -> int:
        """Of the shape: few requests differ in names alone."""
        return hash(self.shape)

    def __bool__(self) -> bool:
        """Whether the pod needs any interface."""
        return bool(self.interfaces)
