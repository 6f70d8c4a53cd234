"""Pods before and after injection: one table for the policy and for the webhook."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

SCHEDULER = "rdma-scheduler"
SLOT = "k8s-rdma.io/slot"
MOUNT = "rdma-sriov/dev-infiniband-mount"
PROGRAM = "kubectl.kubernetes.io/default-container"
ASKS = {"rdma_interfaces_required": '[{"min_tx_rate": 300}]'}


def container(name: str, **more: Any) -> Json:
    return {"name": name, "image": "registry.invalid/c:1", **more}


def limits(resource: str, amount: str = "1", **more: str) -> Json:
    both = {resource: amount, **more}
    return {"resources": {"limits": both, "requests": dict(both)}}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A pod, and the additions to it.

    scheduler: "" if its scheduler stays. slots: containers that get one. nccl: those that get NCCL_NET.
    """

    name: str
    annotations: dict[str, str]
    spec: Json = field(default_factory=lambda: {"containers": [container("main")]})
    scheduler: str = SCHEDULER
    slots: tuple[str, ...] = ()
    nccl: tuple[str, ...] = ()

    def pod(self) -> Json:
        """The pod as its user writes it."""
        meta = {"name": "p", "namespace": "default", "annotations": self.annotations}
        return {"kind": "Pod", "apiVersion": "v1", "metadata": meta, "spec": copy.deepcopy(self.spec)}

    def injected(self) -> Json:
        """The pod as it comes into being."""
        pod = self.pod()
        if self.scheduler:
            pod["spec"]["schedulerName"] = self.scheduler
        for each in (*pod["spec"]["containers"], *pod["spec"].get("initContainers", ())):
            if each["name"] in self.slots:
                resources = each.setdefault("resources", {})
                resources.setdefault("limits", {})[SLOT] = "1"
                resources.setdefault("requests", {})[SLOT] = "1"
            if each["name"] in self.nccl:
                each.setdefault("env", []).append({"name": "NCCL_NET", "value": "IB"})
        return pod


TWO = {"containers": [container("trainer"), container("logger", **limits("cpu", "2"))]}
SIDECAR = {
    "containers": [container("main")],
    "initContainers": [container("setup"), container("proxy", restartPolicy="Always")],
}

CASES = (
    Case(name="the annotation alone", annotations=ASKS, slots=("main",)),
    Case(name="its other name", annotations={"k8s-rdma.io/interfaces": "[{}]"}, slots=("main",)),
    Case(name="both names", annotations={**ASKS, "k8s-rdma.io/interfaces": "[]"}, slots=("main",)),
    Case(
        name="an empty one, and the other name",
        annotations={"rdma_interfaces_required": "[]", "k8s-rdma.io/interfaces": "[{}]"},
        scheduler="",
    ),
    Case(name="no annotation", annotations={}, scheduler=""),
    Case(name="no interfaces", annotations={"rdma_interfaces_required": " [ ]\n"}, scheduler=""),
    Case(name="no text", annotations={"k8s-rdma.io/interfaces": ""}, scheduler=""),
    Case(
        name="malformed, which the extender refuses",
        annotations={"rdma_interfaces_required": "{"},
        slots=("main",),
    ),
    Case(
        name="on a node already",
        annotations=ASKS,
        spec={"nodeName": "w1", "containers": [container("main")]},
        scheduler="",
    ),
    Case(
        name="the default scheduler by name",
        annotations=ASKS,
        spec={"schedulerName": "default-scheduler", "containers": [container("main")]},
        slots=("main",),
    ),
    Case(
        name="a scheduler of its own",
        annotations=ASKS,
        spec={"schedulerName": "mine", "containers": [container("main")]},
        scheduler="",
        slots=("main",),
    ),
    Case(name="the first of two containers", annotations=ASKS, spec=TWO, slots=("trainer",)),
    Case(
        name="another container",
        annotations={**ASKS, "k8s-rdma.io/containers": "logger"},
        spec=TWO,
        slots=("logger",),
    ),
    Case(
        name="both containers",
        annotations={**ASKS, "k8s-rdma.io/containers": " logger , trainer"},
        spec=TWO,
        slots=("trainer", "logger"),
    ),
    Case(
        name="the program that kubectl goes to, as Argo Workflows names it",
        annotations={**ASKS, "k8s-rdma.io/nccl": "required", PROGRAM: "main"},
        spec={"containers": [container("wait"), container("main")]},
        slots=("main",),
        nccl=("main",),
    ),
    Case(
        name="the program, and another container by name",
        annotations={**ASKS, PROGRAM: "logger", "k8s-rdma.io/containers": "trainer"},
        spec=TWO,
        slots=("trainer",),
    ),
    Case(
        name="a program beside one with a slot of its own",
        annotations={**ASKS, PROGRAM: "b"},
        spec={"containers": [container("a", **limits(SLOT)), container("b")]},
    ),
    Case(
        name="a program that is a sidecar",
        annotations={**ASKS, PROGRAM: "proxy"},
        spec=SIDECAR,
        slots=("proxy",),
    ),
    Case(
        name="a program that ends before the others start",
        annotations={**ASKS, PROGRAM: "setup"},
        spec=SIDECAR,
        slots=("main",),
    ),
    Case(
        name="a program that there is not", annotations={**ASKS, PROGRAM: "x"}, spec=TWO, slots=("trainer",)
    ),
    Case(name="no container", annotations={**ASKS, "k8s-rdma.io/containers": " "}, spec=TWO),
    Case(
        name="a sidecar",
        annotations={**ASKS, "k8s-rdma.io/containers": "proxy"},
        spec=SIDECAR,
        slots=("proxy",),
    ),
    Case(
        name="a sidecar and a container",
        annotations={**ASKS, "k8s-rdma.io/containers": "main,proxy"},
        spec=SIDECAR,
        slots=("main", "proxy"),
    ),
    Case(
        name="limits of other resources stay",
        annotations=ASKS,
        spec={
            "containers": [
                container(
                    "main",
                    resources={
                        "limits": {"cpu": "2", "nvidia.com/gpu": "1"},
                        "requests": {"cpu": "1", "nvidia.com/gpu": "1"},
                    },
                )
            ]
        },
        slots=("main",),
    ),
    Case(
        name="requests alone",
        annotations=ASKS,
        spec={"containers": [container("main", resources={"requests": {"cpu": "1"}})]},
        slots=("main",),
    ),
    Case(
        name="a slot of its own", annotations=ASKS, spec={"containers": [container("main", **limits(SLOT))]}
    ),
    Case(
        name="more slots of its own",
        annotations=ASKS,
        spec={"containers": [container("main", **limits(SLOT, "4"))]},
    ),
    Case(
        name="a slot of another container",
        annotations=ASKS,
        spec={"containers": [container("a"), container("b", **limits(SLOT))]},
    ),
    Case(
        name="a slot of an init container",
        annotations=ASKS,
        spec={"containers": [container("main")], "initContainers": [container("setup", **limits(SLOT))]},
    ),
    Case(
        name="device nodes by another resource",
        annotations=ASKS,
        spec={"containers": [container("main", **limits(MOUNT))]},
    ),
    Case(
        name="a named container with a slot of its own",
        annotations={**ASKS, "k8s-rdma.io/containers": "a,b"},
        spec={"containers": [container("a", **limits(SLOT, "2")), container("b")]},
        slots=("b",),
    ),
    Case(
        name="NCCL",
        annotations={**ASKS, "k8s-rdma.io/nccl": "required"},
        spec=TWO,
        slots=("trainer",),
        nccl=("trainer",),
    ),
    Case(
        name="NCCL in a container with a slot of its own",
        annotations={**ASKS, "k8s-rdma.io/nccl": " required "},
        spec={
            "containers": [container("a"), container("b", env=[{"name": "X", "value": "1"}], **limits(SLOT))]
        },
        nccl=("b",),
    ),
    Case(
        name="NCCL_NET of its own",
        annotations={**ASKS, "k8s-rdma.io/nccl": "required"},
        spec={"containers": [container("main", env=[{"name": "NCCL_NET", "value": "Socket"}])]},
        slots=("main",),
    ),
    Case(
        name="NCCL without device nodes",
        annotations={**ASKS, "k8s-rdma.io/nccl": "required", "k8s-rdma.io/containers": ""},
    ),
)

HOST_NETWORK = Case(
    name="the host's network",
    annotations=ASKS,
    spec={"hostNetwork": True, "containers": [container("main")]},
)
NO_INTERFACES = "spec.hostNetwork: a pod in its node's network gets no interfaces"
"""The sentence that refuses it."""

REFUSED: tuple[tuple[str, dict[str, str], str], ...] = (
    (
        "no such container",
        {"k8s-rdma.io/containers": "mian"},
        "k8s-rdma.io/containers: mian is no container or sidecar of this pod; it has main, proxy",
    ),
    (
        "an init container",
        {"k8s-rdma.io/containers": "main, setup"},
        "k8s-rdma.io/containers: setup is no container or sidecar of this pod; it has main, proxy",
    ),
    (
        "an empty name",
        {"k8s-rdma.io/containers": "main,"},
        "k8s-rdma.io/containers: '' is no container or sidecar of this pod; it has main, proxy",
    ),
    (
        "no value of NCCL",
        {"k8s-rdma.io/nccl": "true"},
        "k8s-rdma.io/nccl: true is no value; known is required",
    ),
)
"""Annotations of a pod like `SIDECAR`, and the sentence that refuses it."""
