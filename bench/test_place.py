"""`place`: usual requests in microseconds, hard ones within 10 ms or answered as undecided."""

from __future__ import annotations

import random
import statistics
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from time import thread_time
from typing import TYPE_CHECKING, NamedTuple

import pytest

from k8s_rdma.core.inventory import Inventory, Pf
from k8s_rdma.core.options import InterfaceOptions
from k8s_rdma.core.pf_use import Used
from k8s_rdma.core.placement import Placement, Rejection, place
from k8s_rdma.core.rate_ability import EVERY_RATE, RateAbility, RateRange
from k8s_rdma.core.request import InterfaceRequest, Request
from k8s_rdma.core.types import NodeName, PciAddress, PfSelector, Setting
from k8s_rdma.errors import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BUDGET_MS = 10
INSTANCES = 20
ROUNDS = 5
C = 100_000
WEIGHTS = RateAbility(min=RateRange(), max=RateRange(), weights=100)


class Instance(NamedTuple):
    """Rates in Mb/s, PFs as (Mb/s, VFs), and the PFs that each interface may be on; empty for all."""

    rates: list[int]
    pfs: list[tuple[int, int]]
    where: list[list[int]] | None = None


def test_place_family(family: Callable[[random.Random], Instance], record: Callable[..., None]) -> None:
    """Measure the slowest of the family's instances, each by its median."""
    _measure(family, EVERY_RATE, f"place, {family.__doc__}", record)


def test_place_weighted(weighted: Callable[[random.Random], Instance], record: Callable[..., None]) -> None:
    """Measure the same if minimum rates are weights, as on mlx5."""
    _measure(weighted, WEIGHTS, f"place by weights, {weighted.__doc__}", record)


def _measure(
    family: Callable[[random.Random], Instance], rates: RateAbility, name: str, record: Callable[..., None]
) -> None:
    verdicts: Counter[str] = Counter()
    slowest = 0.0
    for seed in range(INSTANCES):
        drawn = family(random.Random(seed))
        request, inventory = _request(drawn.rates, drawn.where), _inventory(drawn.pfs, rates)
        verdicts[_verdict(place(request, inventory, {}))] += 1
        slowest = max(slowest, _median_s(lambda: place(request, inventory, {})))  # noqa: B023 - called at once
    record(
        name,
        budget=BUDGET_MS,
        measured=slowest * 1e3,
        unit="ms",
        note=", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items())),
    )


@pytest.mark.budget("place, 2 interfaces on 2 PFs", 50, "us")
def test_place_small(benchmark: Callable[..., object]) -> None:
    request, inventory = _request([15_000, 5_000]), _inventory([(C, 120)] * 2)
    benchmark(place, request, inventory, {PciAddress("0000:00:00.0"): Used(3, 45_000)})


@pytest.mark.budget("place, 8 interfaces on 8 PFs", 50, "us")
def test_place_eight(benchmark: Callable[..., object]) -> None:
    request, inventory = _request([1_000 * (5 + at % 3) for at in range(8)]), _inventory([(C, 120)] * 8)
    benchmark(place, request, inventory, {})


@pytest.mark.budget("place, 2 interfaces on 2 full PFs, refused", 50, "us")
def test_place_refuses(benchmark: Callable[..., object]) -> None:
    inventory = _inventory([(C, 120)] * 2)
    used = {pf.pci: Used(100, 95_000) for pf in inventory.pfs}
    benchmark(place, _request([15_000, 5_000]), inventory, used)


@pytest.mark.budget("place by weights, 2 interfaces on 2 PFs", 100, "us")
def test_place_small_weighted(benchmark: Callable[..., object]) -> None:
    request, inventory = _request([15_000, 5_000]), _inventory([(C, 120)] * 2, WEIGHTS)
    benchmark(place, request, inventory, {PciAddress("0000:00:00.0"): Used(3, 45_000, (15_000,) * 3)})


@pytest.mark.budget("place, 60 interfaces of as many names and MACs on 4 of 8 PFs", 500, "us")
def test_place_needs(benchmark: Callable[..., object]) -> None:
    inventory = _inventory([(C, 120)] * 8)
    pfs = tuple(replace(pf, supported_settings=frozenset(Setting), mtu=9000) for pf in inventory.pfs)
    chosen = PfSelector(names=frozenset(pf.name for pf in pfs[::2]))
    request = Request(
        tuple(
            InterfaceRequest(
                min_tx_rate_mbps=5_000 + 100 * (at % 3),
                options=InterfaceOptions(
                    name=f"data{at}", mac=f"02:00:00:00:00:{at:02x}", vlan=100 + at, mtu=9000, pf=chosen
                ),
            )
            for at in range(60)
        )
    )
    benchmark(place, request, replace(inventory, pfs=pfs), {})


def _median_s(work: Callable[[], object]) -> float:
    """Return the median of the thread's own time: other programs do not slow a computation without waits."""
    times = []
    for _ in range(ROUNDS):
        start = thread_time()
        work()
        times.append(thread_time() - start)
    return statistics.median(times)


def _verdict(found: Placement | Rejection) -> str:
    if isinstance(found, Placement):
        return "placed"
    return "undecided" if found.reason is Reason.UNDECIDED else "refused"


def _request(rates: list[int], where: list[list[int]] | None = None) -> Request:
    return Request(
        tuple(
            InterfaceRequest(min_tx_rate_mbps=rate, options=_on(pfs))
            for rate, pfs in zip(rates, where or [[]] * len(rates), strict=True)
        )
    )


def _on(pfs: list[int]) -> InterfaceOptions:
    return InterfaceOptions(pf=PfSelector(names=frozenset(f"enp{at}s0" for at in pfs)) if pfs else None)


def _inventory(pfs: list[tuple[int, int]], rates: RateAbility = EVERY_RATE) -> Inventory:
    return Inventory(
        node=NodeName("w1"),
        pfs=tuple(
            Pf(
                name=f"enp{at}s0",
                pci=PciAddress(f"0000:{at:02x}:00.0"),
                capacity_vfs=vfs,
                link_mbps=mbps,
                rates=rates,
            )
            for at, (mbps, vfs) in enumerate(pfs)
        ),
    )


# The families. Each makes one instance from a source of randomness; its docstring names it in the table.


def _cut(rng: random.Random, whole: int, pieces: int) -> list[int]:
    points = [0, *sorted(rng.sample(range(1, whole), pieces - 1)), whole]
    return [high - low for low, high in pairwise(points)]


def _scaled(rng: random.Random, number: int, largest: int, total: int) -> list[int]:
    """Return so many random rates that add up to `total` or a little less."""
    drawn = [rng.randrange(largest // 50, largest) for _ in range(number)]
    return [max(1, rate * total // sum(drawn)) for rate in drawn]


def _parts(rng: random.Random, number: int, rooms: int) -> list[int]:
    """Return the number of interfaces of each room, one at least."""
    parts = [1] * rooms
    for _ in range(number - rooms):
        parts[rng.randrange(rooms)] += 1
    return parts


def _equal(number: int) -> Callable[[random.Random], Instance]:
    def family(_: random.Random) -> Instance:
        return Instance([3_334] * number, [(C, 120)] * 2)

    return _named(family, f"{number} x 3,334 Mb/s on 2 PFs")


def _just_over(parts: int, extra: int) -> Callable[[random.Random], Instance]:
    def family(rng: random.Random) -> Instance:
        least = C // parts + 1
        large = [rng.randrange(least, least + least // 50) for _ in range(8 * (parts - 1) + extra)]
        left = max(8 * C - sum(large), 0)
        number = 60 - len(large)
        return Instance(
            large + _scaled(rng, number, 1_000, left * rng.choice((80, 90, 97)) // 100), [(C, 120)] * 8
        )

    which = "one more than fits" if extra else "as many as fit"
    return _named(family, f"60 on 8 PFs, sizes just over 1/{parts}, {which}")


def _mixed(extra: int) -> Callable[[random.Random], Instance]:
    def family(rng: random.Random) -> Instance:
        halves = rng.randrange(1, 8)
        large = [rng.randrange(50_001, 55_000) for _ in range(halves)]
        large += [rng.randrange(33_334, 40_000) for _ in range(halves + 2 * (8 - halves) + extra)]
        small = _scaled(rng, 60 - len(large), 1_000, max(0, (8 * C - sum(large)) * 8 // 10))
        return Instance(large + small, [(C, 120)] * 8)

    which = "one more than fits" if extra else "about as many as fit"
    return _named(family, f"60 on 8 PFs, over halves and thirds mixed, {which}")


def _loaded(permille: int, number: int, rooms: int, *, equal: bool) -> Callable[[random.Random], Instance]:
    def family(rng: random.Random) -> Instance:
        sizes = [C if equal else rng.randrange(C // 5, C) for _ in range(rooms)]
        rates = _scaled(rng, number, C // 2, sum(sizes) * permille // 1000)
        return Instance(rates, [(size, 120) for size in sizes])

    kind = "equal" if equal else "unequal"
    return _named(family, f"{number} on {rooms} {kind} PFs, random sizes, {permille / 10:g} % load")


def _perfect(
    number: int, rooms: int, *, equal: bool, spare_vfs: int | None = None
) -> Callable[..., Instance]:
    def family(rng: random.Random) -> Instance:
        sizes = [C if equal else rng.randrange(C // 5, C) for _ in range(rooms)]
        parts = _parts(rng, number, rooms)
        rates = [rate for size, part in zip(sizes, parts, strict=True) for rate in _cut(rng, size, part)]
        rng.shuffle(rates)
        vfs = [120 if spare_vfs is None else part + spare_vfs for part in parts]
        return Instance(rates, list(zip(sizes, vfs, strict=True)))

    kind = "equal" if equal else "unequal"
    scarce = "" if spare_vfs is None else ", VFs exact too"
    return _named(family, f"{number} on {rooms} {kind} PFs, perfect packing{scarce}")


def _scarce_vfs(percent: int) -> Callable[[random.Random], Instance]:
    def family(rng: random.Random) -> Instance:
        sizes = [rng.randrange(C // 5, C) for _ in range(8)]
        rates = _scaled(rng, 60, C // 2, sum(sizes) * percent // 100)
        return Instance(rates, list(zip(sizes, _parts(rng, 60, 8), strict=True)))

    return _named(family, f"60 on 8 unequal PFs with 60 VFs, {percent} % load")


def _few(distinct: int, rooms: int, *, equal: bool) -> Callable[[random.Random], Instance]:
    def family(rng: random.Random) -> Instance:
        sizes = [rng.randrange(2_000, 40_000) for _ in range(distinct)]
        rates = [rng.choice(sizes) for _ in range(60)]
        weights = [1 if equal else rng.randrange(50, 150) for _ in range(rooms)]
        whole = sum(rates) * rng.choice((1000, 1005, 1010, 1020, 1040)) // 1000
        return Instance(rates, [(max(*rates, whole * weight // sum(weights)), 120) for weight in weights])

    kind = "equal" if equal else "unequal"
    return _named(family, f"60 of {distinct} rates on {rooms} {kind} PFs, 96-100 % load")


def _many(permille: int) -> Callable[[random.Random], Instance]:
    def family(rng: random.Random) -> Instance:
        return Instance(_scaled(rng, 1024, 10_000, 16 * C * permille // 1000), [(C, 80)] * 16)

    return _named(family, f"1,024 on 16 PFs, random sizes, {permille / 10:g} % load")


def _selected(number: int, rooms: int, rates: str, percent: int, spare_vfs: int) -> Callable[..., Instance]:
    """rates: `zero`, `one` (and zeros) or `many`. percent: of the bandwidth that is reserved."""

    def family(rng: random.Random) -> Instance:
        sizes = [rng.randrange(C // 5, C) for _ in range(rooms)]
        vfs = _parts(rng, number + spare_vfs, rooms)
        where = [
            rng.sample(range(rooms), rng.randrange(1, 5)) if rng.random() < 0.5 else [] for _ in range(number)
        ]
        wanted = sum(sizes) * percent // 100
        if rates == "many":
            return Instance(_scaled(rng, number, C // 2, wanted), list(zip(sizes, vfs, strict=True)), where)
        one = wanted // (number // 2) if rates == "one" else 0
        return Instance([one, 0] * (number // 2), list(zip(sizes, vfs, strict=True)), where)

    which = {"zero": "nothing reserved", "one": "one rate and zeros", "many": "random rates"}[rates]
    load = f", {percent} % load" if percent else ""
    return _named(family, f"{number} with selectors on {rooms} PFs, {spare_vfs} VFs to spare, {which}{load}")


def _each_its_own(rates: str, *, unlike: bool) -> Callable[[random.Random], Instance]:
    """As many different selectors as interfaces: no two are one class, and no PF is like another."""

    def family(rng: random.Random) -> Instance:
        where = [rng.sample(range(16), rng.randrange(2, 15)) for _ in range(1024)]
        drawn = [0 if rates == "zero" else rng.randrange(1, 3_000) for _ in range(1024)]
        links = [rng.randrange(90_000, 110_000) if unlike else C for _ in range(16)]
        return Instance(drawn, [(link, 65) for link in links], where)

    kind = "unlike" if unlike else "equal"
    which = "nothing reserved" if rates == "zero" else "random rates"
    return _named(family, f"1,024 with a selector each of its own on 16 {kind} PFs, {which}")


def _named(family: Callable[[random.Random], Instance], name: str) -> Callable[[random.Random], Instance]:
    family.__doc__ = name
    return family


def _families() -> Iterator[Callable[[random.Random], Instance]]:
    yield from (_equal(number) for number in (58, 59, 60))
    yield from (_just_over(parts, extra) for parts in (2, 3) for extra in (0, 1))
    yield from (_mixed(extra) for extra in (0, 1))
    yield from (_loaded(load, 60, 8, equal=True) for load in (990, 995, 999, 1000))
    yield from (_loaded(load, 60, 8, equal=False) for load in (990, 1000))
    yield from (_loaded(load, 24, 8, equal=True) for load in (950, 990, 1000))
    yield from (_loaded(load, 60, 16, equal=True) for load in (990, 999))
    yield from (_scarce_vfs(percent) for percent in (70, 90, 97))
    yield from (_perfect(60, 8, equal=equal) for equal in (True, False))
    yield _perfect(60, 8, equal=False, spare_vfs=0)
    yield from (_perfect(number, 4, equal=True) for number in (12, 20))
    yield _perfect(60, 16, equal=True)
    yield from (_few(distinct, 8, equal=True) for distinct in (2, 3, 6))
    yield from (_few(distinct, 16, equal=False) for distinct in (3, 6))
    yield from (_many(permille) for permille in (900, 999))
    yield _each_its_own("zero", unlike=False)
    yield from (_each_its_own("many", unlike=unlike) for unlike in (False, True))
    for number, rooms in ((20, 4), (60, 8), (1024, 16)):
        yield _selected(number, rooms, "zero", 0, 2)
        yield _selected(number, rooms, "one", 70, 3)
        yield from (_selected(number, rooms, "many", percent, 3) for percent in (50, 70, 90))


def _weighted_families() -> Iterator[Callable[[random.Random], Instance]]:
    yield from (_equal(number) for number in (58, 60))
    yield from (_just_over(2, extra) for extra in (0, 1))
    yield from (_loaded(load, 60, 8, equal=True) for load in (900, 990))
    yield _scarce_vfs(70)
    yield _perfect(60, 8, equal=True)
    yield _few(3, 8, equal=True)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one benchmark for each family."""
    if "family" in metafunc.fixturenames:
        families = list(_families())
        metafunc.parametrize("family", families, ids=[family.__doc__ for family in families])
    if "weighted" in metafunc.fixturenames:
        families = list(_weighted_families())
        metafunc.parametrize("weighted", families, ids=[family.__doc__ for family in families])
