"""The demo's output of others' words, which are no markup of its own, and the file that it writes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from k8s_rdma.cli.console import Page
from k8s_rdma.errors import K8sRdmaError
from k8s_rdma_demo.__main__ import print_error
from k8s_rdma_demo.outcome import FlowShown, Outcome, PodShown

if TYPE_CHECKING:
    from pathlib import Path

PATH = "[/tmp/k8s-rdma-demo/run/state.sock]"


def sheet(width: int) -> Page:
    page = Page()
    page.width = width
    return page


def test_error_is_printed_word_for_word_when_it_has_brackets() -> None:
    page = sheet(200)
    with page.capture() as captured:
        print_error(page, K8sRdmaError(f"nobody listens at {PATH}", details=f"[bold]{PATH}"))
    assert captured.get() == f"nobody listens at {PATH}\n  [bold]{PATH}\n"


def test_commands_are_printed_as_they_are_and_left_to_the_terminal_to_wrap() -> None:
    command = "kill -9 $(pgrep --full '[n]ode w2 |/[w]2-')"
    page = sheet(20)
    with page.capture() as captured:
        page.out(command)
    assert captured.get() == f"{command}\n"


def test_outcome_is_printed_word_for_word_when_it_has_brackets() -> None:
    outcome = Outcome()
    outcome.check(f"checks {PATH}", False, f"expects {PATH}", f"measured {PATH}")
    outcome.refusals["p[/]"] = f"refused {PATH}"
    page = sheet(400)
    with page.capture() as captured:
        outcome.show(page)
    for each in ("checks", "expects", "measured", "refused"):
        assert f"{each} {PATH}" in captured.get()
    assert "describe pod p[/]" in captured.get()


def test_verdict_counts_checks_that_passed_failed_and_were_not_made() -> None:
    outcome = Outcome(complete=True)
    outcome.check_equal("a", 1, 1)
    outcome.check_equal("b", 1, 1)
    assert outcome.verdict == "2 checks passed."
    outcome.omit("c", "needs iperf3")
    assert outcome.verdict == "2 checks passed; 1 omitted."
    outcome.check_equal("d", 1, 2)
    assert outcome.verdict == "1 of 3 checks failed (d: 2); 1 omitted."
    outcome.complete = False
    assert outcome.verdict == "1 of 3 checks failed (d: 2); 1 omitted; the demo ended before the others."


def test_pods_have_the_same_keys_in_the_file_as_in_earlier_releases(tmp_path: Path) -> None:
    outcome = Outcome(pods=[PodShown(name="p", requested="min 200", node="w1", allocated="eth0")])
    outcome.write(tmp_path / "demo.json")
    document = json.loads((tmp_path / "demo.json").read_bytes())
    assert document["pods"] == [{"name": "p", "asked": "min 200", "node": "w1", "got": "eth0"}]


def test_lesson_is_of_the_first_pod_that_competes() -> None:
    outcome = Outcome()
    assert outcome.lesson == ""
    outcome.check_flow(FlowShown(scene="caps", name="rdma0", reserved=0, cap=200, measured=191.4))
    assert outcome.lesson == ""
    for name, reserved, measured in (("gold", 500, 540.6), ("silver", 200, 252.0), ("bronze", 110, 165.0)):
        flow = FlowShown(scene="contention", name=name, reserved=reserved, cap=0, measured=measured)
        outcome.check_flow(flow)
    assert outcome.lesson == (
        "gold reserved 500 Mb/s and got 541, while silver and bronze sent as much as they could "
        "over the same link."
    )


def test_last_screen_ends_with_the_lesson_below_the_checks() -> None:
    outcome = Outcome(complete=True)
    flow = FlowShown(scene="contention", name="gold", reserved=500, cap=0, measured=540.6)
    outcome.check_flow(flow)
    page = sheet(200)
    with page.capture() as captured:
        outcome.show(page)
        outcome.show_lesson(page)
    assert captured.get().splitlines()[-3:] == ["1 checks passed.", "", outcome.lesson]


def test_long_values_are_whole_on_a_narrow_terminal() -> None:
    outcome = Outcome()
    value = "rdma_interfaces_required" * 4
    outcome.check_equal("asks by its annotation alone", value, value)
    page = sheet(80)
    with page.capture() as captured:
        outcome.show(page)
    assert captured.get().count(value) == 2
