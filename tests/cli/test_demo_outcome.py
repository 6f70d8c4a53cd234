"""What the demo prints of others' words, which are no markup of its own."""

from __future__ import annotations

from rich.console import Console

from k8s_rdma.errors import K8sRdmaError
from k8s_rdma_demo.__main__ import print_error
from k8s_rdma_demo.outcome import Outcome

PATH = "[/tmp/k8s-rdma-demo/run/state.sock]"


def test_error_is_printed_word_for_word_when_it_has_brackets() -> None:
    console = Console(width=200)
    with console.capture() as captured:
        print_error(console, K8sRdmaError(f"nobody listens at {PATH}", details=f"[bold]{PATH}"))
    assert captured.get() == f"nobody listens at {PATH}\n  [bold]{PATH}\n"


def test_outcome_is_printed_word_for_word_when_it_has_brackets() -> None:
    outcome = Outcome()
    outcome.check(f"checks {PATH}", False, f"expects {PATH}", f"measured {PATH}")
    outcome.refusals["p[/]"] = f"refused {PATH}"
    console = Console(width=400)
    with console.capture() as captured:
        outcome.show(console)
    for each in ("checks", "expects", "measured", "refused"):
        assert f"{each} {PATH}" in captured.get()
    assert "describe pod p[/]" in captured.get()
