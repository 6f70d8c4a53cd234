"""Every row of the table in docs/adr/0004-shim-in-c.md, under everything that can be there or not.

The agent answers with an error. A pod that asks for interfaces must get one also if no agent runs.
"""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cni.call import ANNOTATIONS, CLOSING, CONTAINER, PREV_RESULT, WISH, netconf

if TYPE_CHECKING:
    from collections.abc import Iterator

ASKED, NOTHING = "asked", "nothing"
DELIVERED = {
    "asks": {"runtimeConfig": {ANNOTATIONS: WISH}},
    "does not ask": {"runtimeConfig": {ANNOTATIONS: {}}},
    "not delivered": {},
}
PLACES = {"chained": {"prevResult": PREV_RESULT}, "alone": {}}
KEYS = {
    "neither": {},
    "delegate": {"delegate": {"type": "bridge"}},
    "emptyResult": {"emptyResult": True},
}
MARKERS = ("marked", "not marked", "no markers", "markers are a file", "no run directory")
DEVICES = (
    *("exclusive", "exclusive by configuration", "none exclusive"),
    *("promised", "promised to another", "promised to who knows whom"),
)
UID = "0ddba11"
ARGS = {"CNI_ARGS": f"IgnoreUnknown=1;K8S_POD_NAME=p;K8S_POD_UID={UID};K8S_POD_NAMESPACE=default"}


def prepare(run_dir: Path, markers: str, devices: str) -> None:
    """Make the agent's directory as it is in that case."""
    shutil.rmtree(run_dir, ignore_errors=True)
    if markers == "no run directory":
        return
    run_dir.mkdir()
    (run_dir / "cni.sock").symlink_to("../cni.sock")
    if markers == "markers are a file":
        (run_dir / "attachments").touch()
    elif markers != "no markers":
        (run_dir / "attachments").mkdir()
    if markers == "marked":
        (run_dir / "attachments" / CONTAINER).touch()
    if devices == "exclusive":
        (run_dir / "exclusive-devices").touch()
    if devices.startswith("promised"):
        (run_dir / "claims").mkdir()
        (run_dir / "claims" / (UID if devices == "promised" else "another")).touch()


def arguments(devices: str) -> dict[str, str]:
    return {} if devices == "promised to who knows whom" else ARGS


def is_ordinary(annotations: str, keys: str, markers: str, devices: str) -> bool:
    """Whether such a pod certainly wants no interface of ours; an agent that never ran here has no wishes."""
    asking = devices in {"exclusive", "promised", "promised to who knows whom"}
    marked = asking and markers != "no run directory"
    exclusive = marked or devices == "exclusive by configuration"
    return annotations == "does not ask" and keys != "delegate" and not exclusive


def ended(*, ordinary: bool, markers: str) -> str:
    """The effect of DEL of such a container."""
    return {
        "marked": ASKED,
        "not marked": NOTHING,
        "no markers": NOTHING if ordinary else ASKED,
        "markers are a file": NOTHING if ordinary else ASKED,
        "no run directory": NOTHING,
    }[markers]


def expected(command: str, case: tuple[str, str, str, str, str]) -> str:
    """The table."""
    place, annotations, keys, markers, devices = case
    ordinary = is_ordinary(annotations, keys, markers, devices)
    match command:
        case "VERSION":
            return "versions"
        case "STATUS":
            return NOTHING if keys == "neither" else ASKED
        case "ADD":
            return "prevResult" if place == "chained" and ordinary else ASKED
        case "DEL":
            return ended(ordinary=ordinary, markers=markers)
        case "CHECK":
            asks = annotations == "asks" and markers != "no run directory"  # no agent to ask there
            return ASKED if asks else ended(ordinary=ordinary, markers=markers)
    return ASKED


def seen(command: str, outcome) -> str:
    """The program's action, as the runtime sees it."""
    if outcome.stdout == b"asked":
        return ASKED
    if outcome.exit_status:
        assert outcome.error["code"] == (50 if command == "STATUS" else 11)
        return ASKED
    if not outcome.stdout:
        return NOTHING
    said = json.loads(outcome.stdout)
    return "prevResult" if said == PREV_RESULT else "versions" if "supportedVersions" in said else "?"


def cases() -> Iterator[tuple[str, str, str, str, str]]:
    return itertools.product(PLACES, DELIVERED, KEYS, MARKERS, DEVICES)


@pytest.mark.parametrize("command", ["ADD", "DEL", "CHECK", "STATUS", "GC", "VERSION"])
def test_program_decides_by_the_table_whatever_is_there(program, run_dir, agent, netns, command: str) -> None:
    own = run_dir / "own"
    did, wanted = {}, {}
    for case in cases():
        place, annotations, keys, markers, devices = case
        prepare(own, markers, devices)
        more = {"exclusiveDevices": True} if devices == "exclusive by configuration" else {}
        conf = netconf(own, **PLACES[place], **DELIVERED[annotations], **KEYS[keys], **more)
        env = {"CNI_NETNS": netns} | arguments(devices)
        did[case] = seen(command, program(command, conf, env=env))
        wanted[case] = expected(command, case)
    assert did == wanted


def test_program_leaves_deletions_by_the_table_while_no_agent_runs(program, run_dir) -> None:
    """If the agent made its directory, and with it the one for deletions."""
    own = run_dir / "own"
    did, wanted = {}, {}
    for case in cases():
        place, annotations, keys, markers, devices = case
        prepare(own, markers, devices)
        if own.is_dir():
            (own / "deletions").mkdir()
        more = {"exclusiveDevices": True} if devices == "exclusive by configuration" else {}
        conf = netconf(own, **PLACES[place], **DELIVERED[annotations], **KEYS[keys], **more)
        assert seen("DEL", program("DEL", conf, env=arguments(devices))) == NOTHING
        did[case] = [path.name for path in own.glob("deletions/*")]
        wanted[case] = [f"{CONTAINER}:eth0:net"] if expected("DEL", case) == ASKED else []
    assert did == wanted


@pytest.mark.parametrize(
    ("arguments", "decision"),
    [
        (f"K8S_POD_UID={UID}", ASKED),
        (f";;K8S_POD_UID={UID};x", ASKED),
        ("K8S_POD_UID=another", "prevResult"),
        (f"XK8S_POD_UID={UID};K8S_POD_UID=another", "prevResult"),
        ("", ASKED),
        ("K8S_POD_UID=", ASKED),
        ("K8S_POD_UID=../claims", ASKED),
        (f"K8S_POD_UID={'a' * 64}", ASKED),
    ],
)
def test_pod_with_prepared_claims_is_known_by_its_uid(  # noqa: PLR0917 - fixtures
    program, run_dir, agent, netns, arguments: str, decision: str
) -> None:
    """If the runtime gives no possible uid, any pod may have promises."""
    own = run_dir / "own"
    prepare(own, "not marked", "promised")
    conf = netconf(own, **PLACES["chained"], **DELIVERED["does not ask"])
    outcome = program("ADD", conf, env={"CNI_NETNS": netns, "CNI_ARGS": arguments})
    assert seen("ADD", outcome) == decision


@pytest.mark.parametrize("command", ["ADD", "DEL"])
def test_outcome_does_not_depend_on_standard_error(program, run_dir, agent, netns, command: str) -> None:
    (run_dir / "attachments" / CONTAINER).touch()
    conf = netconf(run_dir)
    outcome = program(command, conf, env={"CNI_NETNS": netns}, by=CLOSING["stderr"])
    assert (outcome.exit_status, outcome.stdout) == (1, b"asked")
    assert agent.received[0].netns_inode == Path(netns).stat().st_ino


def test_input_that_was_never_opened_is_reported(program, run_dir) -> None:
    assert program("DEL", netconf(run_dir), by=CLOSING["stdin"]).error["code"] == 5


@pytest.mark.parametrize("command", ["ADD", "DEL"])
def test_output_that_was_never_opened_is_a_failure(program, run_dir, agent, netns, command: str) -> None:
    """The namespace or the agent's socket has its number then, and must get no byte of the answer."""
    (run_dir / "attachments" / CONTAINER).touch()
    conf = netconf(run_dir)
    outcome = program(command, conf, env={"CNI_NETNS": netns}, by=CLOSING["stdout"])
    assert (outcome.exit_status, outcome.stdout) == (1, b"")
    assert agent.received[0].netns_inode == Path(netns).stat().st_ino
