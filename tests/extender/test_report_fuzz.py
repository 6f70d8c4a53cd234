"""Whatever a node publishes: every verb and every look answers, and about other nodes the same as without it.

The extender is the real one, on an API in memory. The hostile node is a node in order first, with a pod that
was promised a VF there, so that whoever waits has an interest in it; then it publishes a drawn status.
"""

from __future__ import annotations

import asyncio
import copy
import json
from functools import cache
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from deploy.rdma_node_crd import custom_resource_definition
from extender.memory_api import MemoryApi
from extender.node_server import PF0, PF1, pf, rates, report
from extender.virtual_loop import VirtualLoop
from extender.world import interfaces
from k8s_rdma.config.extender import ExtenderConfig, NamespaceLimit
from k8s_rdma.core.placement import PlacedInterface, Placement
from k8s_rdma.core.types import NodeName, PciAddress, PodUid
from k8s_rdma.errors import MalformedError
from k8s_rdma.extender.extender import Extender
from k8s_rdma.extender.main import ExtenderApp
from k8s_rdma.extender.node_source import facts_of, facts_of_status
from k8s_rdma.kube.api import PodView
from k8s_rdma.wire.annotation import ANNOTATION
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, encode
from k8s_rdma.wire.rdma_node import (
    ForeignUse,
    HeldInterfaces,
    Holder,
    PfStatus,
    PodAllocation,
    PoolVfs,
    RdmaNodeStatus,
    encode_status,
    status_of,
)
from k8s_rdma.wire.report import PfRates, Range, decode_report, encode_report
from wire.test_report_bounds import WHOLE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Inject = Callable[[Extender, MemoryApi], None]

[VERSION] = custom_resource_definition()["spec"]["versions"]
SCHEMA = VERSION["schema"]["openAPIV3Schema"]["properties"]["status"]
N1, N2, EVIL = NodeName("n1"), NodeName("n2"), NodeName("evil")
PODS = {"held": N1, "there": EVIL}
POOL = "example.com/rdma"
CONFIG = ExtenderConfig(
    source="crd",
    lease_name="",
    stale_s=3600.0,
    limits=(NamespaceLimit(namespace="default", reserved_mbps=50_000, vfs=20),),
)


def sound(node: NodeName, generation: int = 1, **held: list[int]) -> bytes:
    pfs = (pf(PF0), pf(PF1, rates=rates(weights=100), pools={POOL: 2}))
    return encode_status(status_of(report(node, *pfs, generation=generation, held=held)))


def pod_view(name: str, *asked: int, node: NodeName | None = None, priority: int = 0) -> PodView:
    annotations = {ANNOTATION: interfaces(*asked)}
    if node is not None:
        placed = tuple(PlacedInterface(pf=PciAddress(PF0), min_tx_rate_mbps=rate) for rate in asked)
        annotations[PLACEMENT_ANNOTATION] = encode(
            Placement(node=node, interfaces=placed), PodUid(name), None
        )
    return PodView(
        namespace="default",
        name=name,
        uid=PodUid(name),
        node=node,
        finished=False,
        annotations=annotations,
        priority=priority,
    )


def arranged(evil: bool) -> MemoryApi:
    api = MemoryApi()
    for node in (N1, N2, EVIL) if evil else (N1, N2):
        api.publish(node, sound(node, other=[9_000]), "epoch.1")
    for name, node in PODS.items():
        if evil or node != EVIL:
            api.add_pod(pod_view(name, 500, node=node))
    for name, rate, priority in (("p", 700, 0), ("q", 700, 0), ("waits", 15_000, 0), ("urgent", 800, 9)):
        api.add_pod(pod_view(name, rate, priority=priority))
    return api


class Asked:
    """The application's answers; anything but 200 is a failure."""

    def __init__(self, extender: Extender, names: tuple[str, ...]) -> None:
        self.app = ExtenderApp(extender, CONFIG)
        self.names = names

    async def call(self, method: str, path: str, body: bytes = b"", query: str = "") -> bytes:
        sent: list[dict[str, Any]] = []
        received = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> dict[str, Any]:
            return received.pop() if received else await asyncio.Event().wait()

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": query.encode(),
            "headers": [(b"content-length", str(len(body)).encode())],
        }
        await self.app(scope, receive, send)
        assert sent[0]["status"] == 200, sent
        return b"".join(message.get("body", b"") for message in sent)

    async def post(self, path: str, document: Any) -> Any:
        return json.loads(await self.call("POST", path, json.dumps(document).encode()))

    def args(self, name: str, rate: int) -> dict[str, Any]:
        meta = {"name": name, "namespace": "default", "uid": name}
        meta["annotations"] = {ANNOTATION: interfaces(rate)}
        pod = {"metadata": meta, "spec": {"priority": 9 if name == "urgent" else 0}}
        return {"Pod": pod, "Nodes": None, "NodeNames": list(self.names)}

    async def filter(self, name: str, rate: int) -> Any:
        return await self.post(CONFIG.filter_path, self.args(name, rate))

    async def all(self) -> dict[str, Any]:
        """Return the answers of each verb and each look about the other nodes."""
        told: dict[str, Any] = {}
        found = await self.filter("p", 700)
        told["filter"] = [
            [name for name in found["NodeNames"] or () if name != EVIL],
            {name: why for name, why in (found["FailedNodes"] or {}).items() if name != EVIL},
        ]
        scores = await self.post(CONFIG.prioritize_path, self.args("p", 700))
        told["prioritize"] = without(tenths(scores), EVIL)
        victims = {
            node: {"Pods": [{"UID": name}], "NumPDBViolations": 0}
            for name, node in PODS.items()
            if node in self.names
        }
        found = await self.post(
            CONFIG.preempt_path,
            {"Pod": self.args("urgent", 800)["Pod"], "NodeNameToMetaVictims": victims},
        )
        told["preempt"] = found["NodeNameToMetaVictims"].get(N1)
        told["explain"] = [await self.explained(name) for name in ("p", "held", "waits")]
        view = json.loads(await self.call("GET", "/v1/cluster"))
        told["top"] = [without(row, "heard_s") for row in view["nodes"] if row["name"] != EVIL]
        bind = {"PodName": "p", "PodNamespace": "default", "PodUID": "p", "Node": N1}
        told["bind"] = await self.post(CONFIG.bind_path, bind)
        await self.post(CONFIG.bind_path, {**bind, "PodName": "q", "PodUID": "q", "Node": EVIL})
        metrics = (await self.call("GET", "/metrics")).decode()
        told["limits"] = [line for line in metrics.splitlines() if "_namespace_" in line and line[0] != "#"]
        return told

    async def explained(self, name: str) -> Any:
        await self.call("GET", "/v1/explain", query=f"pod=default/{name}")
        found = json.loads(await self.call("GET", "/v1/explain", query=f"pod=default/{name}&all=1"))
        nodes = [node for node in found.get("nodes", ()) if node["node"] != EVIL]
        return found["state"], [without(place, "since_s") for place in found.get("places", ())], nodes


def without(document: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: each for name, each in document.items() if name not in names}


def run(main: Callable[[VirtualLoop], Awaitable[Any]]) -> Any:
    with capture_logs(), asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main(runner.get_loop()))


def told_of_the_others(inject: Inject | None) -> dict[str, Any]:
    """Return the answers about other nodes, also after a wake. inject: unset: without the hostile node."""

    async def main(loop: VirtualLoop) -> dict[str, Any]:
        api = arranged(inject is not None)
        extender = Extender(CONFIG, api)
        async with extender.running():
            await loop.advance(3.0)
            assert extender.missing() == []
            asked = Asked(extender, (N1, N2) if inject is None else (N1, N2, EVIL))
            assert (await asked.filter("waits", 15_000))["NodeNames"] == []
            if inject is not None:
                inject(extender, api)
            await loop.advance(3.0)
            told = await asked.all()
            api.publish(N2, sound(N2, generation=2), "epoch.2")
            await loop.advance(8.0)
            told["after"] = without(await asked.all(), "top")  # that is kept for a second of the real clock
            assert extender.missing() == []
        return told

    return run(main)


def tenths(scores: list[dict[str, Any]]) -> dict[str, int]:
    """Return each node's score without the one more of the best, which a node that fits better takes over."""
    best = max((each["Score"] for each in scores), default=0)
    return {each["Host"]: each["Score"] - (each["Score"] == best > 0) for each in scores}


@cache
def alone() -> dict[str, Any]:
    return told_of_the_others(None)


def holds(inject: Inject) -> None:
    """No call fails, and others' answers are those that they would be without the node.

    The pod that was bound there is left out of the accounts: it is its namespace's wherever it is.
    """
    told = told_of_the_others(inject)
    for found, wanted in ((told, alone()), (told["after"], alone()["after"])):
        assert without(found, "limits", "after") == without(wanted, "limits", "after")
        assert sum(counted(found)) <= sum(counted(wanted)) + 2 * (700 + 1) + 500 + 1


def counted(told: dict[str, Any]) -> list[float]:
    return [float(line.split()[-1]) for line in told["limits"]]


# statuses that may be published

TEXTS = {
    "pci": ["0000:03:00.0", "0000:03:00.1", "0000:04:00.0", "03:00.0"],
    "pf": ["0000:03:00.0", "0000:03:00.1", "0000:09:00.0"],
    "resource": [POOL, "example.com/other"],
    "pool": ["", POOL, "example.com/other"],
    "uid": ["held", "there", "p", "waits", "urgent", "invented", "other"],
    "namespace": ["default", "victim", "\u202e"],
    "linkType": ["ethernet", "infiniband", "x"],
    "enforce": ["auto", "hardware", "software", "x"],
    "generation": ["epoch.2", "epoch." + "9" * 40, "x", "e.\u0663"],
    "type": ["Ready"],
    "status": ["True"],
}


def numbers(schema: dict[str, Any]) -> st.SearchStrategy[int]:
    least, most = schema.get("minimum", 0), schema.get("maximum", 2**40)
    edges = [
        each for each in (least, least + 1, 5, 700, 9_300, 10_000, most - 1, most) if least <= each <= most
    ]
    return st.sampled_from(edges)


def documents(schema: dict[str, Any], name: str = "") -> st.SearchStrategy[Any]:
    """Return documents that are mostly valid by the schema, and lists with the same entry twice."""
    if "enum" in schema:
        return st.sampled_from(["True", *schema["enum"]])
    match schema["type"]:
        case "object":
            known = {each: documents(below, each) for each, below in schema["properties"].items()}
            needed = {*schema.get("required", ()), "pfs", "allocations", "conditions"} & known.keys()
            optional = {each: below for each, below in known.items() if each not in needed}
            return st.fixed_dictionaries({each: known[each] for each in sorted(needed)}, optional=optional)
        case "array":
            least = int(name == "conditions")
            return st.lists(documents(schema["items"], name), min_size=least, max_size=3)
        case "string":
            return st.sampled_from(TEXTS.get(name, ["", "x", "eth0", "\x1b[2J", "mac", "vlan"]))
        case "boolean":
            return st.booleans()
    return numbers(schema) | st.none() if schema.get("nullable") else numbers(schema)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=5), below, max_size=3),
    max_leaves=10,
)


@st.composite
def near_valid(draw: st.DrawFn) -> Any:
    """A status in order, but for some places."""
    made = copy.deepcopy(json.loads(sound(EVIL, other=[9_000])) if draw(st.booleans()) else WHOLE)
    for _ in range(draw(st.integers(1, 4))):
        mutate(draw, made)
    return made


def mutate(draw: st.DrawFn, document: Any) -> None:
    """Go down to some place, and put something else there, or there once more."""
    while True:
        steps = list(document) if isinstance(document, dict) else list(range(len(document)))
        if not steps:
            return
        step = draw(st.sampled_from(steps))
        below = document[step]
        if isinstance(below, dict | list) and below and draw(st.integers(0, 3)):
            document = below
            continue
        if isinstance(document, list) and draw(st.booleans()):
            document.extend([copy.deepcopy(below)] * draw(st.sampled_from([1, 2, 70])))
        elif isinstance(document, dict) and draw(st.integers(0, 3)) == 0:
            del document[step]
        else:
            document[step] = draw(json_values | st.sampled_from([-1, 2**31, 2**63, 2**70, 10**400]))
        return


published = (documents(SCHEMA) | near_valid() | json_values).map(lambda each: json.dumps(each).encode())
names = st.sampled_from(["epoch.2", "epoch.1", "x", "epoch." + "9" * 5000, "", "a.\u0663"])


FEWER = settings(max_examples=settings().max_examples // 2)
"""Each is two lives of an extender."""


@FEWER
@given(published | st.binary(max_size=50), names)
def test_whatever_a_node_publishes_others_are_answered_the_same(status: bytes, named: str) -> None:
    holds(lambda _, api: api.publish(EVIL, status, named))


@given(published)
def test_report_over_http_is_facts_or_refused(status: bytes) -> None:
    for body in (status, reported(status)):
        try:
            facts_of(decode_report(body), EVIL)
        except MalformedError:
            continue


def reported(status: bytes) -> bytes:
    """Some of it in the words of `/v1/node`."""
    document = json.loads(encode_report(report(EVIL, pf(PF0), held={"u": [5]})))
    told = json.loads(status)
    if isinstance(told, dict):
        for each in ("generation", "problems", "allocations"):
            document[each] = told.get(each, document[each])
        if isinstance(told.get("pfs"), list):
            document["pfs"] = [{**document["pfs"][0], **pf} for pf in told["pfs"] if isinstance(pf, dict)]
    return json.dumps(document).encode()


# facts that every decoder refuses

numbers_of_all_kinds = st.sampled_from([-1, 0, 1, 5, 700, 10_000, 2**32, 2**63])
ranges = st.none() | st.builds(Range, step=st.just(1), smallest=st.just(1), largest=st.just(10_000))
pci = st.sampled_from([PF0, PF1])
unchecked = st.builds(
    RdmaNodeStatus,
    generation=st.just("epoch.2"),
    summary=st.just(None),
    pfs=st.lists(
        st.builds(
            PfStatus,
            name=st.just("eth0"),
            pci=pci,
            link_mbps=st.none() | numbers_of_all_kinds,
            capacity_vfs=numbers_of_all_kinds,
            pools=st.lists(
                st.builds(PoolVfs, resource=st.just(POOL), vfs=numbers_of_all_kinds), max_size=2
            ).map(tuple),
            rates=st.builds(PfRates, min=ranges, max=ranges, weights=st.none() | st.sampled_from([1, 100])),
            foreign=st.lists(
                st.builds(
                    ForeignUse,
                    vfs=st.integers(0, 3),
                    min_mbps=numbers_of_all_kinds,
                    pool=st.sampled_from(["", POOL]),
                ),
                max_size=2,
            ).map(tuple),
            takes=st.just(("mac",)) | st.just(()),
        ),
        max_size=3,
    ).map(tuple),
    allocations=st.lists(
        st.builds(
            PodAllocation,
            pod=st.builds(
                Holder,
                namespace=st.just("default"),
                name=st.just("x"),
                uid=st.sampled_from(["there", "held", "invented", "p"]),
            ),
            interfaces=st.lists(
                st.builds(
                    HeldInterfaces,
                    pf=pci,
                    vfs=st.integers(0, 3),
                    min_mbps=numbers_of_all_kinds,
                    entries=st.sampled_from([(), (0,), (0, 0), (7,)]),
                    pool=st.sampled_from(["", POOL]),
                ),
                max_size=2,
            ).map(tuple),
        ),
        max_size=3,
    ).map(tuple),
    conditions=st.just(status_of(report(EVIL)).conditions),
)


@FEWER
@given(unchecked)
def test_report_that_no_decoder_accepts_affects_only_its_node(status: RdmaNodeStatus) -> None:
    def inject(extender: Extender, _: MemoryApi) -> None:
        try:
            facts = facts_of_status(status, EVIL)
        except MalformedError:
            return
        extender.cache.state.observe(EVIL, facts, float("inf"))

    holds(inject)
