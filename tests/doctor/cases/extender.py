"""Facts of `extender`: in order, and for each kind of finding."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from k8s_rdma.doctor.cluster.components import ExtenderFacts, check_extender

if TYPE_CHECKING:
    from k8s_rdma.doctor.finding import Finding


EXTENDER = ExtenderFacts(url="http://127.0.0.1:8888", pods=(("k8s-rdma/extender-1", True),))


def extender(**more: Any) -> list[Finding]:
    return list(check_extender(replace(EXTENDER, **more)))


IN_ORDER = extender()

CASES = {
    "extender-not-asked": extender(url=""),
    "extender-no-pod": extender(url="", pods=()),
    "extender-not-needed": extender(url="", pods=(), needed=False),
    "extender-unreachable": extender(why="no extender answers: connection refused"),
    "extender-not-ready": extender(pods=(("k8s-rdma/extender-1", False),)),
    "extender-not-reloaded": extender(warning="policyFile /p: policies[0].namespaces: is empty"),
    "extender-standby": extender(pods=(("k8s-rdma/extender-1", True), ("k8s-rdma/extender-2", False))),
}
