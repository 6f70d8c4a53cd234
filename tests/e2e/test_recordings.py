"""Calls of a real container runtime, replayed through the executable and an agent with virtual PFs.

Each comes twice: as recorded, and with an annotation that asks for two interfaces. The answers that a
runtime read are in `recordings/cni_replies.json`. Of a call, only this differs: the plugin, the place of the
agent, and the path of the namespace; and a pod that asks holds no devices.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cni.call import ANNOTATIONS, Outcome, Program
from e2e.conftest import PLUGINS, require_plugins
from e2e.node import Node
from k8s_rdma.wire.cni_result import SUPPORTED_VERSIONS
from k8s_rdma_demo.cluster.cni_plugin import decode_result
from k8s_rdma_demo.cluster.cni_results import result_in_version
from k8s_rdma_demo.cluster.cni_runtime import create_namespace_at, remove_namespace_at

if TYPE_CHECKING:
    from collections.abc import Iterator


FOLDER = Path(__file__).parents[1] / "recordings"
RECORDINGS = {path.stem: json.loads(path.read_text()) for path in sorted((FOLDER / "cni").glob("*.json"))}
REPLIES = json.loads((FOLDER / "cni_replies.json").read_text())
OF_CONTAINERS = [stem for stem, call in RECORDINGS.items() if call["command"] in ("ADD", "CHECK", "DEL")]
ASKED = ("1.1.0-ADD-3",)
"""For more than a virtual PF has."""
WISH = {"rdma_interfaces_required": '[{"min_tx_rate": 100, "max_tx_rate": 200}, {}]'}
MAC = re.compile(r"(?:[0-9a-f]{2}:){5}[0-9a-f]{2}")


@pytest.fixture(scope="module")
def node(program: Program) -> Iterator[Node]:
    """One for all recordings: each leaves it as it was."""
    require_plugins()
    with Node(vfs=4, plugins=PLUGINS, shim=program.path) as node:
        node.start_agent()
        yield node


@pytest.fixture
def netns(node: Node) -> Iterator[str]:
    path = node.directory / "netns" / "replayed"
    create_namespace_at(path)
    yield str(path)
    remove_namespace_at(path)


def call(node: Node, recorded: dict[str, Any], netns: str, *, command: str = "", **keys: Any) -> Outcome:
    """The recorded call, or another one of the same container; `keys` of its configuration are replaced."""
    env, path = recorded["env"], recorded["env"]["CNI_NETNS"]
    if path not in ("", "dummy"):
        env = json.loads(json.dumps(env).replace(path, netns))
    conf = recorded["stdin"] | {"type": "k8s-rdma-cni", "runDir": str(node.run_dir)} | keys
    conf.pop("note", None)  # a key without a reader
    stdin = json.dumps(conf)
    return Program(node.cni_path[0] / "k8s-rdma-cni")(
        command or recorded["command"],
        (stdin.replace(path, netns) if path else stdin).encode(),
        env=env | {"CNI_COMMAND": command or recorded["command"]},
    )


def asking(recorded: dict[str, Any]) -> dict[str, Any]:
    """Return the pod's annotations with one that asks, without the devices that kubelet gave it."""
    config = {**(recorded["stdin"].get("runtimeConfig") or {})}
    config.pop("deviceID", None)
    return {"runtimeConfig": config | {ANNOTATIONS: (config.get(ANNOTATIONS) or {}) | WISH}}


def previous(recorded: dict[str, Any]) -> dict[str, Any]:
    """Return the result of the plugin before us on ADD, also if a DEL comes without it."""
    version = recorded["stdin"]["cniVersion"]
    add = RECORDINGS[f"{version}-ADD-1"]
    told = json.dumps(recorded["stdin"].get("prevResult") or add["stdin"]["prevResult"])
    return {"prevResult": json.loads(told.replace(add["env"]["CNI_NETNS"], recorded["env"]["CNI_NETNS"]))}


def reply(node: Node, outcome: Outcome, netns: str) -> dict[str, Any]:
    """Return an answer as it is kept: with names for the parts that always differ (MACs, namespace)."""
    text = outcome.stdout.decode().replace(netns, "<namespace>")
    vfs = {mac: name for name, (mac, *_) in node.pristine["links"].items() if mac}
    # Which of a PF's free VFs it is does not matter; that it is one does.
    text = MAC.sub(lambda found: "<VF>" if found[0] in vfs else found[0], text)
    return {"exit status": outcome.exit_status, "stdout": json.loads(text) if text else None}


def assert_accepted(stdout: bytes, version: str) -> None:
    """As containerd's library reads a result."""
    result = result_in_version(decode_result(stdout), version)
    assert result["cniVersion"] == version
    assert all(ip["interface"] < len(result["interfaces"]) for ip in result["ips"])


@pytest.mark.parametrize("stem", [stem for stem in OF_CONTAINERS if stem not in ASKED])
def test_call_as_recorded_is_answered_as_it_was(node: Node, netns: str, stem: str) -> None:
    recorded = RECORDINGS[stem]
    if ANNOTATIONS not in (recorded["stdin"].get("runtimeConfig") or {}):
        recorded = recorded | {"stdin": recorded["stdin"] | {"runtimeConfig": {ANNOTATIONS: None}}}
    outcome = call(node, recorded, netns)
    kept = json.dumps(json.loads(recorded["stdout"] or "null")).replace(
        recorded["env"]["CNI_NETNS"], "<namespace>"
    )
    assert reply(node, outcome, netns) == {"exit status": recorded["rc"], "stdout": json.loads(kept)}
    assert node.leftovers() == {}


@pytest.mark.parametrize("stem", OF_CONTAINERS)
def test_call_that_asks_gets_the_reply_that_is_kept(node: Node, netns: str, stem: str) -> None:
    recorded = RECORDINGS[stem]
    version = recorded["stdin"]["cniVersion"]
    pod = asking(recorded) | previous(recorded)
    added = call(node, recorded, netns, command="ADD", **pod)
    assert added.exit_status == 0, added.stdout
    assert_accepted(added.stdout, version)
    told = asking(recorded)
    if "prevResult" in recorded["stdin"]:
        told |= {"prevResult": json.loads(added.stdout)}
    outcome = added if recorded["command"] == "ADD" else call(node, recorded, netns, **told)
    assert reply(node, outcome, netns) == REPLIES[stem]
    for _ in range(2):
        done = call(node, recorded, netns, command="DEL", **asking(recorded))
        assert (done.exit_status, done.stdout) == (0, b"")
    assert node.leftovers() == {}


@pytest.mark.parametrize("stem", [stem for stem, call in RECORDINGS.items() if call["command"] == "GC"])
def test_recorded_gc_ends_attachments_outside_its_list(node: Node, netns: str, stem: str) -> None:
    recorded = RECORDINGS[stem]
    add = RECORDINGS["1.1.0-ADD-1"]
    assert call(node, add, netns, **asking(add)).exit_status == 0
    container = add["env"]["CNI_CONTAINERID"]
    outcome = call(node, recorded, netns)
    assert (outcome.exit_status, outcome.stdout) == (0, b"")
    kept = {each["containerID"] for each in recorded["stdin"]["cni.dev/valid-attachments"]}
    assert node.markers() == sorted({container} & kept)
    assert call(node, add, netns, command="DEL", **asking(add)).exit_status == 0
    assert node.leftovers() == {}


@pytest.mark.parametrize("stem", [stem for stem, call in RECORDINGS.items() if call["command"] == "STATUS"])
def test_recorded_status_succeeds_chained_and_alone(node: Node, netns: str, stem: str) -> None:
    recorded = RECORDINGS[stem]
    env = recorded["env"] | {"CNI_PATH": PLUGINS}
    for keys in ({}, {"delegate": {"type": "bridge"}}, {"emptyResult": True}):
        outcome = call(node, recorded | {"env": env}, netns, **keys)
        assert (outcome.exit_status, outcome.stdout) == (0, b""), keys


@pytest.mark.parametrize("stem", [stem for stem, call in RECORDINGS.items() if call["command"] == "VERSION"])
def test_recorded_version_is_answered_with_the_versions(node: Node, netns: str, stem: str) -> None:
    told = json.loads(call(node, RECORDINGS[stem], netns).stdout)
    assert told == json.loads(RECORDINGS[stem]["stdout"])
    assert tuple(told["supportedVersions"]) == SUPPORTED_VERSIONS


def test_replies_are_kept_of_recordings_that_are_there() -> None:
    assert sorted(REPLIES) == OF_CONTAINERS
    assert {call["command"] for call in RECORDINGS.values()} >= {"ADD", "DEL", "CHECK", "GC", "STATUS"}
