"""CDI specifications of shared resources: a device plugin's declarations are used while it is there."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest

from agent.machine import Machine
from cdi_documents import decode_specification
from fakes.nodes import FakeNodes
from k8s_rdma.agent.cdi_socket import CdiSocket
from k8s_rdma.agent.unix_sockets import listen_unix, serve_connections
from k8s_rdma.wire.cdi import MAX_LINE_BYTES, Declared, Written, decode_written, encode_line

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path


RESOURCE = "rdma.io/hca"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path, rdma=True)


@asynccontextmanager
async def served(machine: Machine) -> AsyncIterator[Callable[[], Awaitable[Plugin]]]:
    """Connections to an agent that stops at the end, before they do."""
    plugins: list[Plugin] = []

    async def connect() -> Plugin:
        plugins.append(Plugin(*await asyncio.open_unix_connection(machine.directory / "cdi.sock")))
        return plugins[-1]

    with machine.running(), listen_unix(machine.directory / "cdi.sock", 0o600) as listener:
        talk = CdiSocket(machine.specifications.shared, machine.worker).talk
        serving = asyncio.create_task(serve_connections(listener, talk, limit=4))
        yield connect
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        for each in plugins:
            each.writer.close()
            with suppress(OSError):
                await each.writer.wait_closed()


class Plugin:
    """A device plugin's end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def declares(self, **resources: tuple[str, ...]) -> Written:
        named = {name.replace("_", "/"): devices for name, devices in resources.items()}
        self.writer.write(encode_line(Declared(resources=named)))
        return decode_written(await self.reader.readline())

    async def leaves(self) -> None:
        """Until the agent has seen it."""
        self.writer.write_eof()
        assert await self.reader.read() == b""


def told(machine: Machine) -> dict[str, set[str]]:
    found = {}
    for path in (machine.directory / "host").rglob("k8s-rdma.io-shared_*.json"):
        kind, [device] = decode_specification(path.read_bytes())
        assert kind == "k8s-rdma.io/shared"
        found[device.name] = {node.path for node in device.container_edits.device_nodes}
    return found


def nodes(machine: Machine, *devices: str) -> set[str]:
    found = FakeNodes(machine.hardware).of_devices(devices)
    return {each.path for each in found} | {"/dev/infiniband/rdma_cm"}


def test_declared_devices_are_listed_until_the_plugin_leaves(machine: Machine) -> None:
    async def scenario() -> None:
        async with served(machine) as plugin:
            ours = await plugin()
            written = await ours.declares(a_x=("f0r0", "f0r1"), b_y=("f0r2",))
            assert set(written.resources) == {"a/x", "b/y"}
            assert told(machine) == {"a_x": nodes(machine, "f0r0", "f0r1"), "b_y": nodes(machine, "f0r2")}
            await ours.declares(a_x=("f0r3",))
            assert told(machine) == {"a_x": nodes(machine, "f0r3")}
            await ours.leaves()
            assert told(machine) == {}

    asyncio.run(scenario())


def test_devices_declared_by_a_later_connection_stay_when_the_first_one_leaves(machine: Machine) -> None:
    async def scenario() -> None:
        async with served(machine) as plugin:
            old, new = await plugin(), await plugin()
            await old.declares(a_x=("f0r0",), b_y=("f0r1",))
            await new.declares(a_x=("f0r2",))
            await old.leaves()
            assert told(machine) == {"a_x": nodes(machine, "f0r2")}

    asyncio.run(scenario())


def test_plugin_that_stays_has_its_devices_listed_when_the_last_declarer_leaves(
    machine: Machine,
) -> None:
    async def scenario() -> None:
        async with served(machine) as plugin:
            old, new = await plugin(), await plugin()
            await new.declares(a_x=("f0r2",))
            await old.declares(a_x=("f0r0",))
            assert told(machine) == {"a_x": nodes(machine, "f0r0")}
            await old.leaves()
            assert told(machine) == {"a_x": nodes(machine, "f0r2")}
            await new.leaves()
            assert told(machine) == {}

    asyncio.run(scenario())


def test_device_without_a_node_is_answered_as_failed_and_no_old_file_is_left(machine: Machine) -> None:
    async def scenario() -> None:
        async with served(machine) as plugin:
            ours = await plugin()
            await ours.declares(a_x=("f0r0",))
            written = await ours.declares(a_x=("nothing",), b_y=("f0r1",))
            assert written.resources == ("b/y",)
            assert "character device" in written.failed["a/x"]
            assert told(machine).keys() == {"b_y"}

    asyncio.run(scenario())


def test_agent_that_stops_leaves_files_and_the_next_one_removes_undeclared_ones(
    machine: Machine,
) -> None:
    async def scenario() -> None:
        async with served(machine) as plugin:
            await (await plugin()).declares(a_x=("f0r0",), b_y=("f0r1",))
        before = told(machine)
        assert before.keys() == {"a_x", "b_y"}
        async with served(machine) as plugin:
            await machine.specifications.restore()
            assert told(machine) == before
            ours = await plugin()
            await ours.declares(b_y=("f0r1",))
            machine.specifications.shared.remove_undeclared()
            assert told(machine).keys() == {"b_y"}

    asyncio.run(scenario())


def test_nodes_with_new_numbers_are_listed_when_the_agent_scans_again(machine: Machine) -> None:
    async def scenario() -> None:
        async with served(machine) as plugin:
            ours = await plugin()
            await ours.declares(a_x=("f0r0",))
            function = next(iter(machine.hardware.functions.values()))
            machine.hardware.move_rdma(function, function.rdma_place)
            assert told(machine) != {"a_x": nodes(machine, "f0r0")}
            await machine.specifications.restore()
            assert told(machine) == {"a_x": nodes(machine, "f0r0")}

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "line",
    [
        b"nonsense\n",
        b'{"resources": {"a/x": ["../../etc/passwd"]}}\n',
        b'{"resources": {"no resource": []}}\n',
        b'{"resources": {"a/x": ["f0r0\\n"]}}\n',
        json.dumps({"resources": {f"a/x{at}": [] for at in range(257)}}).encode() + b"\n",
        b'{"resources": {"a/x": ["f0r0"]}, "nodes": ["/dev/sda"]}\n',
        b"x" * (MAX_LINE_BYTES + 1),
    ],
)
def test_plugin_that_sends_a_malformed_line_is_disconnected(
    machine: Machine, line: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> None:
        async with served(machine) as plugin:
            ours = await plugin()
            await ours.declares(a_x=("f0r0",))
            ours.writer.write(line)
            assert await ours.reader.read() == b""
            assert told(machine) == {}

    asyncio.run(scenario())
    assert "shared_devices_refused" in capsys.readouterr().out


def test_every_writing_is_whole_whenever_it_is_read(machine: Machine) -> None:
    """Its readers watch the directory."""

    async def scenario() -> None:
        async with served(machine) as plugin:
            ours = await plugin()
            for count in range(1, 5):
                await ours.declares(a_x=tuple(f"f0r{index}" for index in range(count)))
                [path] = (machine.directory / "host").rglob("k8s-rdma.io-shared_*")
                document: dict[str, Any] = json.loads(path.read_bytes())
                assert len(document["devices"][0]["containerEdits"]["deviceNodes"]) == count + 1

    asyncio.run(scenario())
