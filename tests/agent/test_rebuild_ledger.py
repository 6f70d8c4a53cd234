"""A ledger rebuilt beside prepared ResourceClaims, by a runtime that remembers ended attachments."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

import msgspec

from factories import PF0, pod
from fakes.kernel import FakeKernel
from fakes.machine import FakeMachine, FakePf
from k8s_rdma.agent.cni.grant import Policy
from k8s_rdma.agent.ledger_store import ClaimMarkers
from k8s_rdma.agent.rebuild_ledger import Rebuild
from k8s_rdma.core.claims import AllocatedClaim, ClaimedInterface, judge, with_uses
from k8s_rdma.core.ledger import ClaimUid, Ledger, LedgerClaim
from k8s_rdma.core.pf_selection import PfRule
from k8s_rdma.core.request import InterfaceRequest
from k8s_rdma.core.types import NodeName, PfUse
from k8s_rdma.linux.receipts import ClaimMark
from k8s_rdma.wire.cached_attachment import CachedAttachment

if TYPE_CHECKING:
    from pathlib import Path

NODE, RULES = NodeName("w1"), (PfRule(use=PfUse.CLAIMS),)


class NoNamespaces:
    """Every sandbox is gone."""

    def find(self, path: str) -> None:
        del path


def cached(name: str, mac: str) -> CachedAttachment:
    """An attachment of a pod without an annotation; only its MAC identifies its VF."""
    plugins = [{"type": "main"}, {"type": "k8s-rdma-cni"}]
    interfaces = [{"name": "rdma0", "mac": mac, "sandbox": "/run/netns/gone"}]
    return CachedAttachment(
        kind="cniCacheV1",
        container_id=f"c-{name}",
        config=json.dumps({"cniVersion": "1.0.0", "name": "net", "plugins": plugins}).encode(),
        if_name="eth0",
        network_name="net",
        netns="/run/netns/gone",
        cni_args=(
            ("K8S_POD_NAMESPACE", "default"),
            ("K8S_POD_NAME", name),
            ("K8S_POD_UID", f"uid-{name}"),
        ),
        capability_args={"io.kubernetes.cri.pod-annotations": msgspec.Raw(b"{}")},
        result=msgspec.Raw(json.dumps({"cniVersion": "1.0.0", "interfaces": interfaces}).encode()),
    )


def test_prepared_vfs_stay_with_their_pod_whatever_the_runtime_remembers(tmp_path: Path) -> None:
    kernel = FakeKernel(FakeMachine(FakePf(name="f0", pci=PF0, vfs=4, rdma=True)))
    hardware = with_uses(kernel.observe(), RULES, Ledger())
    entry = ClaimedInterface(
        request="r", device="f0", share_id="s", interface=InterfaceRequest(min_tx_rate_mbps=10)
    )
    claim = AllocatedClaim(
        uid=ClaimUid("u"), namespace="default", name="c", pod=pod("p"), pod_claim="c", interfaces=(entry,)
    )
    prepared = judge(claim, NODE, hardware, Ledger())
    assert isinstance(prepared, LedgerClaim)
    markers = ClaimMarkers(tmp_path / "claims")
    markers.write(prepared.pod.uid, ClaimMark(claims=(prepared,)))
    rebuild = Rebuild(
        node=NODE,
        kernel=kernel,
        namespaces=cast("Any", NoNamespaces()),
        policy=Policy(allow_unplaced=True),
        boot_id="boot-1",
        cni_path="/opt/cni/bin",
        rules=RULES,
    )
    assert all(outcome.complete for outcome in rebuild.claims(markers))
    promised_mac, free_mac = (vf.mac for vf in hardware.pfs[0].vfs[:2])
    remembered = [cached("old", promised_mac), cached("q", free_mac), cached("p", promised_mac)]
    rebuilt = {outcome.subject: outcome for outcome in rebuild.attachments(remembered)}
    assert {
        receipt.pod.name: receipt.interfaces[0].vf.index for receipt in rebuild.ledger.receipts.values()
    } == {
        "p": 0,
        "q": 1,
    }
    assert "net c-old eth0" not in rebuilt
    assert rebuild.ledger.claims == {prepared.uid: prepared}
