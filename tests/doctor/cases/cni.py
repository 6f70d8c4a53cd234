"""Facts of `cni`: in order, and for each kind of finding."""

from __future__ import annotations

import json

from k8s_rdma.doctor.node.cni import CniFacts, CniFile, check_cni

CHAIN = {
    "cniVersion": "1.0.0",
    "name": "pods",
    "plugins": [
        {"type": "bridge", "ipam": {"type": "host-local"}},
        {"type": "k8s-rdma-cni", "capabilities": {"io.kubernetes.cri.pod-annotations": True}},
    ],
}


def conflist(**ours: object) -> str:
    bridge, rdma = CHAIN["plugins"]
    return json.dumps(CHAIN | {"plugins": [bridge, rdma | ours]})


def cni(
    *files: tuple[str, str | None],
    broken: dict[str, str] | None = None,
    missing: str = "",
    calls_check: bool = False,
) -> list:
    facts = CniFacts(
        directory="/etc/cni/net.d",
        files=tuple(CniFile(name=name, text=text, why="Permission denied") for name, text in files),
        bin_dirs=("/opt/cni/bin",),
        programs=frozenset({"bridge", "host-local", "k8s-rdma-cni"}) - {missing},
        broken=broken or {},
        run_dir="/run/k8s-rdma",
        calls_check=calls_check,
    )
    return list(check_cni(facts))


OURS, PLAIN = (
    ("00-k8s-rdma.conflist", conflist()),
    ("10-flannel.conflist", json.dumps(CHAIN | {"plugins": CHAIN["plugins"][:1]})),
)


MADE = (
    "00-k8s-rdma.conflist",
    json.dumps(
        json.loads(conflist())
        | {"k8s-rdma.io/made-of": {"file": "10-flannel.conflist", "types": ["bridge", "portmap"]}}
    ),
)


IN_ORDER = cni(OURS, PLAIN)

CASES = {
    "cni-no-file": cni(),
    "cni-unreadable": cni(("10-net.conflist", "{")),
    "cni-other-file-first": cni(("05-flannel.conflist", PLAIN[1]), ("10-k8s-rdma.conflist", conflist())),
    "cni-not-chained": cni(PLAIN),
    "cni-multus": cni(("00-multus.conf", '{"name": "multus", "type": "multus"}')),
    "cni-nothing-before": cni(("10-net.conflist", json.dumps(CHAIN | {"plugins": CHAIN["plugins"][1:]}))),
    "cni-no-capability": cni(("10-net.conflist", conflist(capabilities={}))),
    "cni-checked": cni(OURS, PLAIN, calls_check=True),
    "cni-configuration-refused": cni(("10-net.conflist", conflist(interfaceName="rdma{i}"))),
    "cni-meaningless-keys": cni(("10-net.conflist", conflist(if0="eth1"))),
    "cni-other-run-dir": cni(("10-net.conflist", conflist(runDir="/run/other"))),
    "cni-plugin-missing": cni(OURS, missing="host-local"),
    "cni-outdated": cni(MADE, PLAIN),
    "cni-program": cni(OURS, broken={"k8s-rdma-cni": "Exec format error"}),
}
