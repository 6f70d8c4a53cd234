"""`k8s-rdma explain pod`, as a user runs it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from cli.asking import bind, k8s_rdma
from extender.node_server import PF0, PF1, pf, report
from extender.serving import FILTER, served
from extender.world import cluster
from http_server.certificates import Issuer
from k8s_rdma.config.extender import ExtenderConfig
from k8s_rdma.config.tls import TlsConfig
from k8s_rdma.core.rate_ability import NO_RATE
from k8s_rdma.extender.main import access_of
from k8s_rdma.http_server import Answer
from k8s_rdma.wire.http_error import MAX_ANSWER_BYTES
from k8s_rdma.wire.placement_keys import PlacementKeys
from k8s_rdma.wire.report import rates_of
from k8s_rdma.wire.views import decode_explanation
from web.serving import listening

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio


async def test_pod_that_fits_on_one_node_alone_is_explained_pf_by_pf():
    async with cluster("w1", "w2") as c, served(c) as s:
        await s.ready()
        c.nodes["w1"].report = report("w1", pf(PF0), pf(PF1))
        c.nodes["w2"].report = report("w2", pf(PF0, mbps=4000))
        await c.create_pod("p", 6000, 5000)
        ran = await k8s_rdma("explain", "pod", "default/p", "--extender", s.url)
    assert (ran.status, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[0].startswith("pod default/p (")
    assert lines[0].endswith("): waiting")
    assert lines[1:4] == [
        "asks for 2 interfaces; 11000 Mb/s reserved, priority 0",
        '  1 x {"min_tx_rate": 6000}',
        '  1 x {"min_tx_rate": 5000}',
    ]
    assert lines[4].startswith("no scheduler has asked this extender about it yet. If that stays so, one of ")
    assert lines[7] == "  it requests none of the extender's managedResources: k8s-rdma doctor cluster"
    assert "1 node: fits" in lines
    assert re.search(
        r"^w1 \(score \d+\) +enp3s0f0 +<none> +4/4 +10000/10000Mb/s +1 +1 interface, (5|6)000 Mb/s *$",
        ran.out,
        re.MULTILINE,
    ), ran.out
    assert re.search(
        r"^1 node: no: RDMA Scheduler Extension: Node did not .*; no eviction", ran.out, re.MULTILINE
    )
    assert re.search(
        r"^w2 +enp3s0f0 +<none> +4/4 +4000/4000Mb/s +0 +4000 Mb/s unreserved, and", ran.out, re.MULTILINE
    )


async def test_explain_names_the_enforcer_of_rates_if_hardware_does_not_enforce_them():
    async with cluster("w1") as c, served(c) as s:
        await s.ready()
        there = pf(PF0, rates=rates_of(NO_RATE), takes=("software-caps",))
        c.nodes["w1"].report = report("w1", there)
        await c.create_pod("p", annotation='[{"min_tx_rate": 60, "max_tx_rate": 70}]')
        ran = await k8s_rdma("explain", "pod", "default/p", K8S_RDMA_EXTENDER=s.url)
    assert "1 interface, 60 Mb/s; reservations: accounted; caps: software" in ran.out


async def test_bound_pod_is_explained_with_its_place():
    async with cluster("w1") as c, served(c, key=PlacementKeys.shared(b"secret")) as s:
        await s.ready()
        await c.create_pod("p", 6000)
        await bind(c, s, "p", "w1")
        ran = await k8s_rdma("explain", "pod", "default/p", K8S_RDMA_EXTENDER=s.url)
    assert "): bound" in ran.out
    assert re.search(
        r"^on w1 for \d+s\n  placed: enp3s0f0 1 VF 6000 Mb/s\n  placement annotation: valid\n"
        r"  its agent reports nothing of it$",
        ran.out,
        re.MULTILINE,
    )
    assert "fits" not in ran.out
    assert ran.out.splitlines()[-1] == (
        "not started, or started without our CNI plugin: see `kubectl -n default describe pod p`, and "
        "`k8s-rdma doctor node` on w1"
    )


async def test_bound_pod_that_has_its_interfaces_is_started():
    async with cluster("w1") as c, served(c) as s:
        await s.ready()
        uid = (await c.create_pod("p", 6000))["metadata"]["uid"]
        await bind(c, s, "p", "w1")
        c.nodes["w1"].report = report("w1", pf(PF0), generation=2, held={uid: 6000})
        ran = await k8s_rdma("explain", "pod", "default/p", K8S_RDMA_EXTENDER=s.url)
    assert "its agent reports enp3s0f0 1 VF 6000 Mb/s" in ran.out
    assert ("not started" in ran.out, "if it were scheduled now:" in ran.out) == (False, True)


@pytest.mark.parametrize("bound", [False, True])
async def test_explain_reports_that_a_pod_requests_no_interface(*, bound: bool):
    async with cluster("w1") as c, served(c) as s:
        await s.ready()
        await c.create_pod("p", annotation="[]")
        if bound:
            await bind(c, s, "p", "w1")
        ran = await k8s_rdma("explain", "pod", "default/p", K8S_RDMA_EXTENDER=s.url)
    [answer, note] = ran.out.splitlines()[1:]
    assert answer == "asks for no RDMA interfaces"
    assert note.startswith(
        "note: whether it requests any by ResourceClaim is not known: no usable kubeconfig"
    )


async def test_explain_prints_the_request_in_the_words_of_the_annotation():
    text = '{"pf": {"name": ["eth10", "eth9"]}, "mtu": 9000}'
    async with cluster("w1") as c, served(c) as s:
        await s.ready()
        await c.create_pod("p", annotation=f"[{text}]")
        ran = await k8s_rdma("explain", "pod", "default/p", K8S_RDMA_EXTENDER=s.url)
    assert f"asks for 1 interface; 0 Mb/s reserved, priority 0\n  1 x {text}\n" in ran.out


async def test_refused_pod_is_explained_with_its_last_refusal_and_as_a_document():
    async with cluster("w1") as c, served(c) as s:
        await s.ready()
        await c.create_pod("p", 60_000)
        await s.post(FILTER, c.args("p"))
        ran = await k8s_rdma("explain", "pod", "default/p", "--node", "w1", "--extender", s.url)
        document = await k8s_rdma("explain", "pod", "default/p", "--json", "--extender", s.url + "/")
    assert re.search(
        r"^last refused \d+s ago by filter: 1 node: too small for the pod, even when empty$",
        ran.out,
        re.MULTILINE,
    )
    assert re.search(r"^w1: no: .*best PF has 10000 Mb/s", ran.out, re.MULTILINE)
    assert decode_explanation(document.out.encode()).refused.verb == "filter"


@pytest.mark.parametrize("wanted", ['"pf": "eth9"', '"mtu": 9216'])
async def test_explain_of_a_pod_that_needs_other_pfs_does_not_mention_drivers(wanted: str):
    async with cluster("w1") as c, served(c) as s:
        await s.ready()
        c.nodes["w1"].report = report("w1", pf(PF0, takes=("mtu",)))
        await c.create_pod("p", annotation=f"[{{{wanted}}}]")
        await s.post(FILTER, c.args("p"))
        ran = await k8s_rdma("explain", "pod", "default/p", "--extender", s.url)
        seen = await k8s_rdma("top", "--once", "--extender", s.url)
    refused = r"^last refused \d+s ago by filter: 1 node: no PF as the pod asks for$"
    assert re.search(refused, ran.out, re.MULTILINE)
    assert "1 node: no PF as the pod asks for" in seen.out


async def test_unanswerable_question_is_one_line_with_advice():
    ran = await k8s_rdma("explain", "pod", "default/p", "--extender", "http://127.0.0.1:1")
    assert ran.status == 2
    assert ran.err.startswith("k8s-rdma: no extender answers at http://127.0.0.1:1: ")
    assert "kubectl -n k8s-rdma port-forward" in ran.err
    async with cluster("w1") as c, served(c) as s:
        await s.ready()
        for named in (["default/none"], ["none"], ["none", "-n", "default"]):
            ran = await k8s_rdma("explain", "pod", *named, "--extender", s.url)
            assert (ran.status, ran.err) == (2, "k8s-rdma: the API server knows no pod default/none\n")
    for wrong, said in (
        (["/p"], "/p: wanted NAMESPACE/NAME, such as default/p, or NAME"),
        (["default/p", "--extender", "here"], "--extender here: wanted a URL"),
        (["default/p", "--token-file", "/none"], "--token-file /none: No such file"),
        (["default/p", "--ca-file", "/none"], "--ca-file /none: No such file"),
        (["default/p", "--cert-file", "/none"], "--cert-file /none, --key-file /none: No such file"),
    ):
        ran = await k8s_rdma("explain", "pod", *wrong)
        assert (ran.status, ran.err.startswith(f"k8s-rdma: {said}")) == (2, True), ran.err


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (200, b"\xff", "explanation: "),
        (200, b"[]", "explanation: Expected `object`, got `array`"),
        (500, b'{"a":' + b"[" * 100_000, "it is no extender of this version"),
        (500, b'{"error":{"reason":"\xff","message":"m"}}', "it is no extender of this version"),
        (200, b" " * (MAX_ANSWER_BYTES + 1), "an answer of more than 67108864 bytes"),
    ],
    ids=["no UTF-8", "a list", "deep", "no UTF-8 in an error", "long"],
)
@pytest.mark.parametrize("options", [(), ("--json",)], ids=["page", "document"])
async def test_answer_of_no_extender_is_refused_in_one_line(
    status: int, body: bytes, message: str, options: tuple[str, ...]
):
    async with listening(Answer(body, status=status, content_type="application/json")) as url:
        ran = await k8s_rdma("explain", "pod", "default/p", "--extender", url, *options)
    assert (ran.status, ran.out) == (2, "")
    assert message in ran.err
    assert len(ran.err.splitlines()) == 1


async def test_extender_behind_tls_and_a_token_answers_a_client_with_both(tmp_path: Path):
    issuer = Issuer(tmp_path).make()
    ours = issuer.issue("extender")
    (tmp_path / "tokens").write_text("# of people\nsecret\n")
    tls = TlsConfig(cert_file=str(ours.cert), key_file=str(ours.key))
    access = access_of(ExtenderConfig(tls=tls, token_file=str(tmp_path / "tokens")))
    async with cluster("w1") as c, served(c, access=access, verify=False) as s:
        await c.create_pod("p", 1000)
        asks = ("explain", "pod", "default/p", "--extender", s.url)
        token, ca = ("--token-file", str(tmp_path / "tokens")), ("--ca-file", str(issuer.own.cert))
        assert "p" in (await k8s_rdma(*asks, *token, *ca)).out
        assert (await k8s_rdma(*asks, *token, "--insecure")).status == 0
        unknown = await k8s_rdma(*asks, *token)
        assert (unknown.status, "certificate verify failed" in unknown.err.lower()) == (2, True), unknown.err
        assert "--ca-file FILE" in unknown.err
        without = await k8s_rdma(*asks, *ca)
        assert (without.status, "--token-file FILE" in without.err) == (2, True), without.err


async def test_pod_that_holds_exclusive_devices_is_explained_by_the_most_that_may_come_to_a_pf():
    pools = {"tencent.com/rdma": 4}
    async with cluster("w1") as c, served(c) as s:
        await s.ready()
        c.nodes["w1"].report = report("w1", pf(PF0, pools=pools), pf(PF1))
        await c.create_pod("p", 3000, 2000, devices={"tencent.com/rdma": 2})
        ran = await k8s_rdma("explain", "pod", "default/p", "--extender", s.url)
        await bind(c, s, "p", "w1")
        bound = await k8s_rdma("explain", "pod", "default/p", "--extender", s.url)
    assert re.search(
        r"enp3s0f0 +<none> +of 4 devices +10000/10000Mb/s +2 +up to 2 interfaces, 5000 Mb/s *$",
        ran.out,
        re.MULTILINE,
    )
    assert "placed: enp3s0f0 up to 2 VFs 5000 Mb/s" in bound.out
