"""Facts of `lossless`: in order, and for each kind of finding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.doctor.node.lossless import LosslessFacts, PortQos, check_lossless

if TYPE_CHECKING:
    from k8s_rdma.doctor.finding import Finding


def lossless(**port: object) -> list[Finding]:
    told = {"roce": True, **port}
    return list(check_lossless(LosslessFacts(ports=(PortQos(name="eth0", **told),))))


IN_ORDER = list(
    check_lossless(LosslessFacts(ports=(PortQos(name="eth0", roce=True, pfc=(3,), trust="dscp", ecn=(3,)),)))
)

CASES = {
    "lossless-no-flow-control": lossless(pfc=(), pause=False),
    "lossless-global-pause": lossless(pfc=(), pause=True),
    "lossless-trust-pcp": lossless(pfc=(3,), trust="pcp"),
    "lossless-ecn-off": lossless(pfc=(3,), ecn=()),
    "lossless-not-known": lossless(),
    "lossless-not-needed": lossless(roce=False),
}
