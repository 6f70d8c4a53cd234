"""The demo's results: checks, throughput, pods, refusals; shown as tables and written as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
from rich.markup import escape
from rich.syntax import Syntax
from rich.text import Text

from k8s_rdma.cli.tables import NONE, Column, Table
from k8s_rdma_demo.over_time import OverTime

if TYPE_CHECKING:
    from pathlib import Path

    from k8s_rdma.cli.console import Page

TOLERANCE = 0.1
"""Caps and reservations hold within this part of themselves."""

TCP_SHARE = 1448 / 1514
"""The share of a frame's bytes that is payload: TCP reaches at most this share of a rate."""

BAR_WIDTH = 24

CONTENTION = "contention"
"""The scene in which pods compete for one link."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A check with its expected and its measured value."""

    name: str
    passed: bool
    expected: str
    measured: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OmittedCheck:
    """A check that could not be made here, which neither passed nor failed."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PodShown:
    """A pod, its node and its interfaces."""

    name: str
    requested: str
    node: str
    allocated: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowShown:
    """Measured throughput of a flow, all in Mb/s; 0 for no reservation or no cap."""

    scene: str
    name: str
    reserved: int
    cap: int
    measured: float

    @property
    def floor(self) -> float:
        """The rate that the flow must reach: its cap, or without one its reservation, less the tolerance."""
        return (1 - TOLERANCE) * TCP_SHARE * (self.cap or self.reserved)


@dataclass(slots=True)
class Outcome:
    """Collects while the demo runs.

    manifest: the text of one pod that was asked for, without comments. complete: all scenes were played.
    over_time: the recording of one link, if that was played.
    """

    manifest: str = ""
    complete: bool = False
    checks: list[Check] = field(default_factory=list)
    omitted: list[OmittedCheck] = field(default_factory=list)
    pods: list[PodShown] = field(default_factory=list)
    flows: list[FlowShown] = field(default_factory=list)
    refusals: dict[str, str] = field(default_factory=dict)
    refused_rates: dict[str, str] = field(default_factory=dict)
    over_time: OverTime | None = None

    @property
    def passed(self) -> bool:
        """Report whether there were checks and all passed."""
        return bool(self.checks) and all(check.passed for check in self.checks)

    @property
    def verdict(self) -> str:
        """Say in a sentence how many checks passed or were omitted, and which failed."""
        number = len(self.checks)
        failures = [f"{check.name}: {check.measured}" for check in self.checks if not check.passed]
        verdict = f"{number} checks passed"
        if failures:
            verdict = f"{len(failures)} of {number} checks failed ({'; '.join(failures)})"
        if self.omitted:
            verdict += f"; {len(self.omitted)} omitted"
        if not self.complete:
            verdict += "; the demo ended before the others"
        return f"{verdict}."

    @property
    def lesson(self) -> str:
        """Say the first competing pod's reservation and rate, and its rivals; empty if not measured."""
        competing = [flow for flow in self.flows if flow.scene == CONTENTION]
        if not competing:
            return ""
        first, *rivals = competing
        names = " and ".join(flow.name for flow in rivals)
        return (
            f"{first.name} reserved {first.reserved} Mb/s and got {first.measured:.0f}, "
            f"while {names} sent as much as they could over the same link."
        )

    def check(self, name: str, passed: bool, expected: object, measured: object) -> None:
        """Record a check."""
        found = Check(name=name, passed=passed, expected=_text(expected), measured=_text(measured))
        self.checks.append(found)

    def check_equal(self, name: str, expected: object, measured: object) -> None:
        """Record a check that two things are the same."""
        self.check(name, expected == measured, expected, measured)

    def omit(self, name: str, reason: str) -> None:
        """Record a check that could not be made."""
        self.omitted.append(OmittedCheck(name=name, reason=reason))

    def check_flow(self, flow: FlowShown) -> None:
        """Record a flow, and whether its cap and its reservation hold."""
        self.flows.append(flow)
        name = flow_check(flow.scene, flow.name, flow.cap)
        if flow.cap:
            high = flow.cap * (1 + TOLERANCE)
            self.check(
                name,
                flow.floor <= flow.measured <= high,
                f"{flow.floor:.0f}..{high:.0f} Mb/s",
                f"{flow.measured:.0f} Mb/s",
            )
        elif flow.reserved:
            self.check(
                name,
                flow.measured >= flow.floor,
                f"at least {flow.floor:.0f} Mb/s",
                f"{flow.measured:.0f} Mb/s",
            )

    def write(self, path: Path) -> None:
        """Write everything as JSON."""
        document: dict[str, Any] = {
            "passed": self.passed,
            "manifest": self.manifest,
            "checks": [asdict(check) for check in self.checks],
            "omittedChecks": [asdict(check) for check in self.omitted],
            "pods": [
                {"name": pod.name, "asked": pod.requested, "node": pod.node, "got": pod.allocated}
                for pod in self.pods
            ],
            "flows": [asdict(flow) for flow in self.flows],
            "refusals": self.refusals,
            "refusedRates": self.refused_rates,
        }
        if self.over_time is not None:
            document["overTime"] = self.over_time.document()
        path.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")

    def show(self, page: Page) -> None:
        """Print everything, as tables if possible."""
        if self.manifest:
            page.print("\n[bold]A pod asks by its annotation alone[/]\n")
            page.print(Syntax("", "yaml", background_color="default").highlight(self.manifest.rstrip()))
        if self.pods:
            _print_table(page, "Pods", self._pod_table())
        if self.flows:
            title = "Throughput between pods of two nodes (TCP, Mb/s, at the receiver)"
            _print_table(page, title, self._flow_table())
        page.print()
        for name, why in self.refusals.items():
            page.print(
                f"[bold]kubectl describe pod {escape(name)}[/]\n"
                f"  [dim]Warning  FailedScheduling[/]  {escape(why)}\n"
            )
        for change, why in self.refused_rates.items():
            page.print(f"[bold]k8s-rdma rates set {escape(change)}[/]\n  [dim]refused[/]  {escape(why)}\n")
        _print_table(page, "Checks", self._check_table())
        page.print()
        self.show_verdict(page)

    def show_verdict(self, page: Page) -> None:
        """Print the verdict."""
        page.print(Text(self.verdict, style="bold" if self.passed else "bold red"))

    def show_lesson(self, page: Page) -> None:
        """Print the sentence to remember, if its numbers were measured."""
        if self.lesson:
            page.print(Text(f"\n{self.lesson}", style="bold green"))

    def _pod_table(self) -> Table:
        table = Table(
            Column("POD"),
            Column("ASKS FOR (Mb/s)", prose=True),
            Column("NODE"),
            Column("INTERFACES: PF x VFS", prose=True),
        )
        for pod in self.pods:
            table.add(pod.name, pod.requested, pod.node, pod.allocated)
        return table

    def _flow_table(self) -> Table:
        numbers = (Column(heading, right=True) for heading in ("RESERVED", "CAP", "MEASURED"))
        table = Table(Column("SCENE"), Column("FLOW"), *numbers, Column("", rank=1))
        widest = max((flow.measured for flow in self.flows), default=1.0)
        for flow in self.flows:
            bar = "█" * max(1, round(BAR_WIDTH * flow.measured / widest))
            rates = (str(flow.reserved or NONE), str(flow.cap or NONE), f"{flow.measured:.0f}")
            table.add(flow.scene, flow.name, *rates, Text(bar, style="cyan"))
        return table

    def _check_table(self) -> Table:
        prose = (Column(heading, prose=True) for heading in ("CHECK", "MEASURED", "EXPECTED"))
        table = Table(Column("  "), *prose)
        for check in self.checks:
            mark = Text("✓", style="green") if check.passed else Text("✗", style="bold red")
            table.add(mark, check.name, check.measured, Text(check.expected, style="dim"))
        for omitted in self.omitted:
            reason = Text(omitted.reason, style="dim")
            table.add(Text("-", style="yellow"), omitted.name, "not checked", reason)
        return table


def flow_check(scene: str, name: str, cap: int) -> str:
    """Name the check of a flow: its cap if it has one, otherwise its reservation."""
    return f"{scene}: {name} {'is held to its cap' if cap else 'gets its reservation'}"


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or value == []:
        return "none"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _print_table(page: Page, title: str, table: Table) -> None:
    page.print(Text(f"\n{title}\n", style="bold"))
    page.print(table)
