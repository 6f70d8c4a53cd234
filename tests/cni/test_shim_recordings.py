"""Calls of a real container runtime, replayed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from k8s_rdma.wire.cni_socket import Reply, encode_reply

if TYPE_CHECKING:
    from cni.call import Outcome, Program
    from cni.scripted_agent import ScriptedAgent

RECORDINGS = sorted((Path(__file__).parents[1] / "recordings" / "cni").glob("*.json"))
ASKED = {"1.1.0-ADD-2", "1.1.0-ADD-3", "1.1.0-GC-1", "1.1.0-GC-2"}
"""ADD-2 came without annotations, ADD-3 with a request of ours."""


def replay(program: Program, run_dir: Path, netns: str, recorded: dict) -> Outcome:
    """The recorded call with a namespace of today; VERSION's is a word that is no namespace."""
    env = recorded["env"]
    if env["CNI_NETNS"] not in ("", "dummy"):
        env = env | {"CNI_NETNS": netns}
    return program(recorded["command"], recorded["stdin"] | {"runDir": str(run_dir)}, env=env)


def test_recordings_are_there() -> None:
    assert {path.stem for path in RECORDINGS} >= ASKED


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_shim_answers_as_recorded_when_no_pod_has_anything_of_ours(
    program: Program, run_dir: Path, agent: ScriptedAgent, netns: str, path: Path
) -> None:
    recorded = json.loads(path.read_text())
    agent.answer = encode_reply(Reply(exit_status=recorded["rc"], stdout=recorded["stdout"].encode()))
    outcome = replay(program, run_dir, netns, recorded)
    assert outcome.exit_status == recorded["rc"]
    if recorded["command"] == "VERSION":
        assert json.loads(outcome.stdout)["cniVersion"] == recorded["stdin"]["cniVersion"]
    else:
        assert json.loads(outcome.stdout or b"null") == json.loads(recorded["stdout"] or "null")
    assert len(agent.received) == (path.stem in ASKED)


@pytest.mark.parametrize(
    "path", [path for path in RECORDINGS if "-DEL-" in path.stem], ids=lambda path: path.stem
)
def test_shim_asks_on_a_recorded_del_when_the_container_is_marked(
    program: Program, run_dir: Path, agent: ScriptedAgent, netns: str, path: Path
) -> None:
    recorded = json.loads(path.read_text())
    (run_dir / "attachments" / recorded["env"]["CNI_CONTAINERID"]).touch()
    replay(program, run_dir, netns, recorded)
    (received,) = agent.received
    assert received.request.env == recorded["env"] | {"CNI_NETNS": netns}
    assert json.loads(received.request.stdin) == recorded["stdin"] | {"runDir": str(run_dir)}
