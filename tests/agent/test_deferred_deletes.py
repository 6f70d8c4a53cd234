"""DELs that the CNI executable left while no agent answered, and their outcome."""

from __future__ import annotations

import asyncio
import shutil
import stat
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from agent.machine import PLUGINS, Machine, asks, call
from agent.scripted_plugin import MODERN, ScriptedPlugin
from k8s_rdma.agent.cni.networks import NETWORKS_ANNOTATION
from k8s_rdma.core.ledger import Attachment
from k8s_rdma.errors import LedgerError
from k8s_rdma.wire.cni_socket import SocketRequest, encode_request

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

ONE = Attachment("net", "c1", "eth0")
REFUSED = """echo '{"code":7,"msg":"no range"}'; exit 1"""
UNLESS_RIGHT = """case "$stdin" in *'"right"'*) true ;; *) """ + REFUSED + " ;; esac"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(scenario())


def frame(attachment: Attachment, stdin: bytes = b'{"name": "net"}', path: str = PLUGINS) -> bytes:
    env = {
        "CNI_COMMAND": "DEL",
        "CNI_CONTAINERID": attachment.container,
        "CNI_IFNAME": attachment.ifname,
        "CNI_PATH": path,
    }
    return encode_request(SocketRequest(env=env, stdin=stdin))


def file_of(machine: Machine, attachment: Attachment) -> Path:
    name = f"{attachment.container}:{attachment.ifname}:{attachment.network}"
    return machine.directory / "run" / "deletions" / name


def leave(machine: Machine, attachment: Attachment = ONE, data: bytes | None = None) -> None:
    """Leave a DEL as the executable does."""
    file_of(machine, attachment).write_bytes(frame(attachment) if data is None else data)


def left(machine: Machine) -> list[str]:
    return sorted(path.name for path in (machine.directory / "run" / "deletions").iterdir())


def test_attachment_ends_by_the_deletion_that_was_left_though_its_sandbox_is_there(machine: Machine) -> None:
    async def scenario() -> None:
        with machine.running() as (node, verbs):
            netns = machine.hardware.create_namespace()
            await verbs.add(call("ADD"), netns, machine.stdin(asks({"min_tx_rate": 5}, {})))
            assert not await verbs.reconcile()
            leave(machine)
            with capture_logs() as logs:
                assert await verbs.reconcile()
            assert {"event": "left_deletion_done", "container": "c1", "ifname": "eth0"}.items() <= logs[
                0
            ].items()
            assert machine.hardware.alive(netns)
            assert not node.ledger.receipts
            assert machine.is_pristine()
            assert (left(machine), machine.markers()) == ([], set())
            assert not await verbs.reconcile()

    run(scenario)


def test_only_the_attachment_ends_whose_deletion_was_left(machine: Machine) -> None:
    async def scenario() -> None:
        with machine.running() as (node, verbs):
            netns = machine.hardware.create_namespace()
            wanted = asks({"network": "a"}, {"network": "b"}) | {NETWORKS_ANNOTATION: "a, b"}
            for network, ifname in (("a", "net1"), ("b", "net2")):
                await verbs.add(call("ADD", ifname=ifname), netns, machine.stdin(wanted, name=network))
            leave(machine, Attachment("a", "c1", "net1"))
            leave(machine, Attachment("a", "c1", "net2"))
            assert await verbs.reconcile()
            assert list(node.ledger.receipts) == [Attachment("b", "c1", "net2")]
            assert (left(machine), machine.markers()) == ([], {"c1"})

    run(scenario)


def test_deletion_that_was_left_is_carried_out_by_the_next_agent_before_it_serves(machine: Machine) -> None:
    async def before() -> None:
        with machine.running() as (_, verbs):
            netns = machine.hardware.create_namespace()
            await verbs.add(call("ADD"), netns, machine.stdin(asks({"min_tx_rate": 5})))
        leave(machine)

    async def after() -> None:
        with machine.running() as (node, verbs):
            assert node.ledger.receipts
            assert await verbs.reconcile()
            assert not node.ledger.receipts
            assert machine.is_pristine()
            assert left(machine) == []

    run(before)
    run(after)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        frame(ONE)[:-1],
        frame(ONE) + b"x",
        b"KRDC\2\0" + frame(ONE)[6:],
        b"K" * 10_000,
        encode_request(SocketRequest(env={"CNI_COMMAND": "DEL"}, stdin=b"{}")),
        encode_request(SocketRequest(env={}, stdin=b"\xff")),
    ],
    ids=["empty", "cut short", "too long", "another version", "no frame", "no container", "no call"],
)
def test_unreadable_deletion_is_logged_and_carried_out_by_its_name(machine: Machine, data: bytes) -> None:
    async def scenario() -> None:
        with machine.running() as (node, verbs):
            await verbs.add(call("ADD"), machine.hardware.create_namespace(), machine.stdin(asks({})))
            leave(machine, data=data)
            with capture_logs() as logs:
                assert await verbs.reconcile()
            [told] = [each for each in logs if each["log_level"] == "warning"]
            assert (told["event"], told["file"]) == ("left_deletion_unreadable", "c1:eth0:net")
            assert told["error"]
            assert not node.ledger.receipts
            assert left(machine) == []

    run(scenario)


def test_deletion_of_an_unknown_attachment_is_removed(machine: Machine) -> None:
    async def scenario() -> None:
        with machine.running() as (_, verbs):
            leave(machine, Attachment("net", "c1", "net1"))
            odd = file_of(machine, ONE).with_name("\udcff")
            odd.touch()
            draft = file_of(machine, ONE).with_name(".17.1234")
            draft.touch()
            with capture_logs() as logs:
                assert not await verbs.reconcile()
            assert {each["file"] for each in logs} == {"c1:net1:net", "\\udcff"}
            assert left(machine) == [draft.name]

    run(scenario)


def test_deletion_stays_until_it_could_be_carried_out(machine: Machine) -> None:
    async def scenario() -> None:
        with machine.running() as (node, verbs):
            await verbs.add(call("ADD"), machine.hardware.create_namespace(), machine.stdin(asks({})))
            leave(machine)
            machine.kernel.fail(after_changes=0)
            with capture_logs() as logs:
                assert not await verbs.reconcile()
            assert [each["event"] for each in logs] == ["reconcile_failed"]
            assert left(machine) == ["c1:eth0:net"]
            assert await verbs.reconcile()
            assert not node.ledger.receipts
            assert left(machine) == []

    run(scenario)


def test_deletion_brings_the_configuration_of_then(tmp_path: Path, machine: Machine) -> None:
    """If another plugin's ADD failed by a mistake, its DEL succeeds by the corrected configuration."""
    plugin = ScriptedPlugin(tmp_path)
    plugin.speak(MODERN, ADD=REFUSED, DEL=UNLESS_RIGHT)

    def conf(**content: object) -> bytes:
        return machine.stdin(asks({}), ipam={"type": "scripted"} | content)

    async def scenario() -> None:
        with machine.running() as (node, verbs):
            netns = machine.hardware.create_namespace()
            with pytest.raises(Exception, match="no range"):
                await verbs.add(replace(call("ADD"), path=str(tmp_path)), netns, conf())
            for stdin, ended in ((conf(), False), (conf(right=True), True)):
                leave(machine, data=frame(ONE, stdin, str(tmp_path)))
                assert await verbs.reconcile() == ended
            assert not node.ledger.receipts
            assert left(machine) == []

    run(scenario)


def test_del_that_comes_after_all_makes_the_file_needless(machine: Machine) -> None:
    async def scenario() -> None:
        with machine.running() as (_, verbs):
            await verbs.add(call("ADD"), machine.hardware.create_namespace(), machine.stdin(asks({})))
            leave(machine)
            await verbs.delete(call("DEL"), "net")
            assert left(machine) == []
            assert machine.is_pristine()

    run(scenario)


@pytest.mark.parametrize("held", [True, False])
def test_next_attachment_of_that_name_is_not_ended_by_it(machine: Machine, held: bool) -> None:
    """A network that is plugged out and in again, whatever of it the agent has seen to by then."""

    async def scenario() -> None:
        with machine.running() as (node, verbs):
            netns = machine.hardware.create_namespace()
            if held:
                await verbs.add(call("ADD"), netns, machine.stdin(asks({"min_tx_rate": 5})))
            leave(machine)
            await verbs.add(call("ADD"), netns, machine.stdin(asks({"min_tx_rate": 7})))
            assert left(machine) == []
            assert not await verbs.reconcile()
            [receipt] = node.ledger.receipts.values()
            assert [each.min_tx_rate_mbps for each in receipt.interfaces] == [7]

    run(scenario)


def test_attachment_is_not_made_over_a_deletion_that_cannot_be_removed(machine: Machine) -> None:
    async def scenario() -> None:
        with machine.running() as (node, verbs):
            file_of(machine, ONE).mkdir()
            with pytest.raises(LedgerError, match=r"deletions that were left: .*c1:eth0:net"):
                await verbs.add(call("ADD"), machine.hardware.create_namespace(), machine.stdin(asks({})))
            assert not node.ledger.receipts
            assert machine.is_pristine()

    run(scenario)


def test_deletion_of_an_add_in_progress_is_carried_out_afterwards(machine: Machine) -> None:
    """Its caller gave up, and the DEL that came then did not get through."""

    async def scenario() -> None:
        with machine.running() as (node, verbs):
            seen: list[Any] = []

            async def on_prepared() -> None:
                leave(machine)
                seen.append(await verbs.reconcile())

            machine.on_prepared = on_prepared
            await verbs.add(call("ADD"), machine.hardware.create_namespace(), machine.stdin(asks({})))
            assert seen == [False]
            assert await verbs.reconcile()
            assert not node.ledger.receipts
            assert machine.is_pristine()

    run(scenario)


def test_many_that_were_left_are_all_carried_out(machine: Machine) -> None:
    async def scenario() -> None:
        with machine.running() as (node, verbs):
            for number in range(8):
                netns = machine.hardware.create_namespace()
                await verbs.add(call("ADD", f"c{number}", f"u{number}"), netns, machine.stdin(asks({})))
            for number in range(2000):
                leave(machine, Attachment("net", f"c{number}", "eth0"))
            assert await verbs.reconcile()
            assert not node.ledger.receipts
            assert left(machine) == []

    run(scenario)


def test_directory_is_its_owners_alone_and_is_made_again(machine: Machine) -> None:
    directory = machine.directory / "run" / "deletions"

    async def scenario() -> None:
        with machine.running() as (_, verbs):
            assert stat.S_IMODE(directory.stat().st_mode) == 0o700
            shutil.rmtree(directory)
            await verbs.reconcile()
            assert directory.is_dir()

    run(scenario)


def test_deletions_that_were_left_wait_if_no_more_are_accepted_for_now(machine: Machine) -> None:
    directory = machine.directory / "run" / "deletions"

    async def scenario() -> None:
        with machine.running() as (node, verbs):
            await verbs.add(call("ADD"), machine.hardware.create_namespace(), machine.stdin(asks({})))
        leave(machine)
        for _ in range(2):
            node.ledger_store.deferred_deletes.refuse()
            assert not directory.exists()
        with machine.running() as (node, verbs):
            assert left(machine) == ["c1:eth0:net"]
            assert await verbs.reconcile()
            assert not node.ledger.receipts

    run(scenario)


def test_agent_does_not_start_if_the_directory_cannot_exist(machine: Machine) -> None:
    (machine.directory / "run").mkdir()
    (machine.directory / "run" / "deletions").touch()
    with (
        pytest.raises(LedgerError, match=r"deletions that were left: .*deletions: File exists"),
        machine.running(),
    ):
        pass
