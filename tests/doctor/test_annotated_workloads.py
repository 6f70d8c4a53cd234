"""Workloads with the annotation of their pods: of the API server's lists, those without effect are found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from k8s_rdma.doctor.cluster.workloads import WorkloadFacts, check_workloads
from k8s_rdma.doctor.collectors.annotated_workloads import annotated_workloads

if TYPE_CHECKING:
    from collections.abc import Iterator

ASKS = {"rdma_interfaces_required": "[{}]"}
ALIAS = {"k8s-rdma.io/interfaces": "[{}]"}


class Lists:
    """In the place of the API server."""

    def __init__(self, **lists: list[dict[str, Any]]) -> None:
        self._lists = lists

    def items(self, path: str) -> Iterator[dict[str, Any]]:
        return iter(self._lists.get(path.rpartition("/")[2], ()))


def workload(name: str, own: dict[str, str] | None, of_pods: dict[str, str] | None) -> dict[str, Any]:
    template = {"metadata": {"annotations": of_pods}}
    return {
        "metadata": {"namespace": "team", "name": name, "annotations": own},
        "spec": {"template": template, "jobTemplate": {"spec": {"template": template}}},
    }


def test_workload_is_found_if_its_pods_lack_the_annotation() -> None:
    api = Lists(
        deployments=[workload("a", ASKS, None), workload("b", ASKS, ASKS), workload("c", None, ASKS)],
        jobs=[
            workload("d", ALIAS, {}),
            {"metadata": {"namespace": "team", "name": "e", "annotations": ASKS}},
        ],
        cronjobs=[workload("f", ASKS, {"other": "x"})],
    )
    found = {(each.kind, each.name): (each.annotation, each.template) for each in annotated_workloads(api)}
    assert found == {
        ("Deployment", "team/a"): ("rdma_interfaces_required", "spec.template"),
        ("Job", "team/d"): ("k8s-rdma.io/interfaces", "spec.template"),
        ("Job", "team/e"): ("rdma_interfaces_required", "spec.template"),
        ("CronJob", "team/f"): ("rdma_interfaces_required", "spec.jobTemplate.spec.template"),
    }


def test_first_of_many_workloads_are_shown_with_the_number_of_the_others() -> None:
    api = Lists(statefulsets=[workload(f"s{number}", ASKS, None) for number in range(25)])
    found = list(check_workloads(WorkloadFacts(annotated=tuple(annotated_workloads(api)))))
    assert len(found) == 21
    assert found[-1].found.startswith("5 more")
