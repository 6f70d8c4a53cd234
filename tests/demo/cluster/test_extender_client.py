from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from k8s_rdma_demo.cluster.extender_client import (
    ExtenderClient,
    ExtenderConfig,
    ExtenderError,
    MetaVictims,
    Victims,
    binding_arguments,
    scheduling_arguments,
)

pytestmark = pytest.mark.anyio

RECORDINGS = Path(__file__).parents[2] / "recordings" / "extender"
DEADLINE_S = 120
NODES = [{"metadata": {"name": f"node-{i}"}} for i in (1, 2, 3)]
POD = {"metadata": {"name": "p", "namespace": "d", "uid": "u"}, "spec": {}}


@dataclass
class Listener:
    """Takes requests byte by byte and answers each with the same reply."""

    reply: bytes = b"{}"
    status: str = "200 OK"
    requests: list[tuple[str, list[list[str]], bytes]] = field(default_factory=list)
    connections: int = 0
    netloc: str = ""

    silent: bool = False

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            line, *headers = head.decode().removesuffix("\r\n\r\n").split("\r\n")
            pairs = [header.split(": ", 1) for header in headers]
            length = int(dict(pairs)["Content-Length"])
            self.requests.append((line, pairs, await reader.readexactly(length)))
            if not self.silent:
                writer.write(f"HTTP/1.1 {self.status}\r\nContent-Length: {len(self.reply)}\r\n\r\n".encode())
                writer.write(self.reply)
                await writer.drain()


@asynccontextmanager
async def extender(listener: Listener, **config):
    talks = set()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talks.add(asyncio.current_task())
        try:
            await listener.converse(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()
            await writer.wait_closed()

    async with asyncio.timeout(DEADLINE_S):
        server = await asyncio.start_server(talk, "127.0.0.1", 0)
        listener.netloc = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        verbs = {
            "filter_verb": "rdma_scheduling",
            "prioritize_verb": "prioritize",
            "preempt_verb": "preempt",
            "bind_verb": "bind",
        }
        full = ExtenderConfig(url_prefix=f"http://{listener.netloc}/scheduler", **(verbs | config))
        async with server:
            async with ExtenderClient.connecting(full) as client:
                yield client
            await asyncio.gather(*talks)


def called(kind: str) -> list[str]:
    return sorted(path.stem for path in RECORDINGS.glob(f"*-{kind}.json"))


async def assert_sent_as_recorded(listener: Listener, recorded: dict) -> None:
    line, headers, body = listener.requests[0]
    assert line == recorded["request_line"]
    assert [name for name, _ in headers] == [name for name, _ in recorded["headers"]]
    expected = {**dict(recorded["headers"]), "Host": listener.netloc}
    # The recordings' own lengths count bytes that were taken out of their pods.
    expected["Content-Length"] = str(len(body))
    assert dict(headers) == expected
    assert body.decode() == json.dumps(recorded["body"], separators=(",", ":"), ensure_ascii=False)


@pytest.mark.parametrize("name", called("filter") + called("prioritize"))
async def test_filter_and_prioritize_are_sent_as_kube_scheduler_sent_them(name, recording):
    recorded = recording(f"extender/{name}")
    asked = recorded["body"]
    names_only = asked["NodeNames"] is not None
    nodes = [{"metadata": {"name": n}} for n in asked["NodeNames"]] if names_only else asked["Nodes"]["items"]
    listener = Listener(reply=json.dumps(recorded["reply"]).encode())
    async with extender(listener, node_cache_capable=names_only) as client:
        if name.endswith("filter"):
            left = await client.filter(asked["Pod"], nodes)
            expected = recorded["reply"]["NodeNames"]
            if not names_only:
                expected = [item["metadata"]["name"] for item in recorded["reply"]["Nodes"]["items"]]
            assert [node["metadata"]["name"] for node in left.nodes] == expected
            refusals = recorded["reply"]["FailedNodes"] | recorded["reply"]["FailedAndUnresolvableNodes"]
            assert left.refused == refusals
        else:
            scores = await client.prioritize(asked["Pod"], nodes)
            assert scores == {each["Host"]: each["Score"] for each in recorded["reply"]}
    await assert_sent_as_recorded(listener, recorded)


@pytest.mark.parametrize("name", called("bind"))
async def test_bind_is_sent_as_kube_scheduler_sent_it(name, recording):
    recorded = recording(f"extender/{name}")
    asked = recorded["body"]
    pod = {"metadata": {"name": asked["PodName"], "namespace": asked["PodNamespace"], "uid": asked["PodUID"]}}
    listener = Listener(reply=json.dumps(recorded["reply"]).encode())
    async with extender(listener) as client:
        await client.bind(pod, asked["Node"])
    await assert_sent_as_recorded(listener, recorded)
    assert dict(listener.requests[0][1])["Content-Length"] == dict(recorded["headers"])["Content-Length"]


@pytest.mark.parametrize("name", called("preempt"))
async def test_preempt_is_sent_as_kube_scheduler_sent_it(name, recording):
    recorded = recording(f"extender/{name}")
    asked = recorded["body"]
    uids_only = asked["NodeNameToMetaVictims"] is not None
    sent = asked["NodeNameToMetaVictims"] if uids_only else asked["NodeNameToVictims"]
    pods = {
        node: tuple({"metadata": {"uid": pod["UID"]}} if uids_only else pod for pod in each["Pods"])
        for node, each in sent.items()
    }
    victims = {node: Victims(pods[node], sent[node]["NumPDBViolations"]) for node in reversed(sent)}
    listener = Listener(reply=json.dumps(recorded["reply"]).encode())
    async with extender(listener, node_cache_capable=uids_only) as client:
        left = await client.preempt(asked["Pod"], victims)
    assert left == {node: MetaVictims(tuple(p["metadata"]["uid"] for p in pods[node]), 0) for node in pods}
    await assert_sent_as_recorded(listener, recorded)


@pytest.mark.parametrize(
    ("reply", "left"),
    [
        ({}, {}),
        (None, {}),
        (
            {"nodenametometavictims": {"n": {"pods": [{"uid": "u"}], "NUMPDBVIOLATIONS": 2}}},
            {"n": (("u",), 2)},
        ),
        ({"NodeNameToMetaVictims": {"n": None}}, {"n": ((), 0)}),
    ],
)
async def test_preempt_reads_replies_as_go_reads_them(reply, left):
    async with extender(Listener(reply=json.dumps(reply).encode())) as client:
        found = await client.preempt(POD, {})
    assert {node: (each.uids, each.violations) for node, each in found.items()} == left


async def test_preempt_fails_when_the_reply_is_no_answer():
    reply = {"NodeNameToMetaVictims": {"n": {"Pods": [{"UID": 1}]}}}
    async with extender(Listener(reply=json.dumps(reply).encode())) as client:
        with pytest.raises(ExtenderError, match="json: "):
            await client.preempt(POD, {})


async def test_connection_is_kept_when_calls_follow_each_other():
    listener = Listener(reply=b'{"NodeNames": ["node-1"]}')
    async with extender(listener, node_cache_capable=True) as client:
        for _ in range(3):
            await client.filter(POD, NODES)
    assert (listener.connections, len(listener.requests)) == (1, 3)


def test_text_is_escaped_as_go_escapes_it():
    pod = {"metadata": {"name": "p", "annotations": {"a": '<&> \u2028 "é"'}}}
    body = scheduling_arguments(pod, [], names_only=True)
    assert rb'"a":"\u003c\u0026\u003e \u2028 \"' in body
    assert "é".encode() in body
    assert binding_arguments(POD, "n") == b'{"PodName":"p","PodNamespace":"d","PodUID":"u","Node":"n"}'


def test_objects_are_sent_without_kind_and_pods_without_managed_fields():
    pod = {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "p", "managedFields": [{}]}}
    node = {"kind": "Node", "metadata": {"name": "n", "managedFields": [{}]}}
    body = json.loads(scheduling_arguments(pod, [node], names_only=False))
    assert body["Pod"] == {"metadata": {"name": "p"}}
    assert body["Nodes"]["items"] == [{"metadata": {"name": "n", "managedFields": [{}]}}]


@pytest.mark.parametrize(
    ("reply", "left", "refused"),
    [
        ({"NodeNames": ["node-3", "node-1"]}, ["node-3", "node-1"], {}),
        ({"nodenames": ["node-2"], "ERROR": None, "x": 1}, ["node-2"], {}),
        ({"NodeNames": [], "FailedNodes": {"node-1": "a"}}, [], {"node-1": "a"}),
        ({}, [], {}),
        (None, [], {}),
        (
            {"FailedNodes": {"node-1": "a"}, "FailedAndUnresolvableNodes": {"node-1": "b"}},
            [],
            {"node-1": "b"},
        ),
    ],
)
async def test_filter_reads_replies_as_go_reads_them(reply, left, refused):
    async with extender(Listener(reply=json.dumps(reply).encode()), node_cache_capable=True) as client:
        answer = await client.filter(POD, NODES)
    assert [node["metadata"]["name"] for node in answer.nodes] == left
    assert answer.refused == refused


async def test_filter_takes_full_nodes_as_they_come_back():
    reply = {"Nodes": {"items": [{"metadata": {"name": "unheard-of"}}]}}
    async with extender(Listener(reply=json.dumps(reply).encode())) as client:
        assert (await client.filter(POD, NODES)).nodes == reply["Nodes"]["items"]


@pytest.mark.parametrize(
    ("listener", "says"),
    [
        (Listener(status="500 No"), "failed rdma_scheduling with extender at URL"),
        (Listener(status="204 No Content", reply=b""), "code 204"),
        (Listener(reply=b'{"Error":"told so"}'), "told so"),
        (Listener(reply=b"nonsense"), "json: "),
        (Listener(reply=b'{"Nodes":' + b"[" * 100_000), "json: "),
        (Listener(reply=b'{"NodeNames": "node-1"}'), "json: "),
        (Listener(reply=b'{"NodeNames": ["elsewhere"]}'), "not found in the input node list"),
    ],
)
async def test_filter_fails_when_the_reply_is_no_answer(listener, says):
    async with extender(listener, node_cache_capable=True) as client:
        with pytest.raises(ExtenderError, match=says):
            await client.filter(POD, NODES)


@pytest.mark.parametrize("score", ["1.0", '"1"', "true"])
async def test_scores_fail_as_a_whole_when_one_is_no_integer(score):
    reply = f'[{{"Host":"node-1","Score":10}},{{"Host":"node-2","Score":{score}}}]'
    async with extender(Listener(reply=reply.encode())) as client:
        with pytest.raises(ExtenderError, match="json: "):
            await client.prioritize(POD, NODES)


async def test_scores_are_weighted():
    async with extender(Listener(reply=b'[{"Host":"node-1","Score":3}, null]'), weight=5) as client:
        assert await client.prioritize(POD, NODES) == {"node-1": 15, "": 0}


async def test_bind_fails_when_the_reply_carries_an_error():
    async with extender(Listener(reply=b'{"Error":"no longer fits"}')) as client:
        with pytest.raises(ExtenderError, match="no longer fits"):
            await client.bind(POD, "node-1")


async def test_call_fails_in_the_words_of_go_without_a_listener():
    async with extender(Listener()) as client:
        pass
    async with ExtenderClient.connecting(client.config) as late:
        with pytest.raises(ExtenderError) as failed:
            await late.bind(POD, "node-1")
    assert failed.value.message.startswith(f'Post "{client.config.url_prefix}/bind": dial tcp 127.0.0.1:')
    assert failed.value.message.endswith("connect: connection refused")


async def test_call_fails_when_the_answer_takes_longer_than_http_timeout():
    async with extender(Listener(silent=True), http_timeout_s=0.05) as client:
        with pytest.raises(ExtenderError, match=r"Client\.Timeout exceeded while awaiting headers"):
            await client.filter(POD, NODES)


@pytest.mark.parametrize(
    ("containers", "interested"),
    [
        ([{"resources": {"limits": {"rdma/hca": "1"}}}], True),
        ([{}, {"resources": {"requests": {"rdma/hca": "1"}}}], True),
        ([{"resources": {"requests": {"cpu": "1"}, "limits": None}}], False),
        ([], False),
    ],
)
@pytest.mark.parametrize("where", ["containers", "initContainers"])
async def test_extender_is_called_only_for_pods_with_its_managed_resources(containers, interested, where):
    async with extender(Listener(), managed_resources=frozenset({"rdma/hca"})) as client:
        assert client.is_interested({"spec": {where: containers}}) is interested
    async with extender(Listener()) as client:
        assert client.is_interested({"spec": {where: containers}})
