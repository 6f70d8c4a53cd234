"""examples/workloads, and the pods that their controllers make of them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

Json = dict[str, Any]
FOLDER = Path(__file__).parents[1] / "examples" / "workloads"
FILES = sorted(FOLDER.glob("*.yaml"))


def workload(path: Path) -> Json:
    """The object of a file that pods are made from, which is its last."""
    return list(yaml.safe_load_all(path.read_text()))[-1]


def pods(document: Json) -> Iterator[Json]:
    """All pods of a workload, named by it and a number."""
    number = 0
    for count, template in templates(document):
        for _ in range(count):
            meta = {**template.get("metadata", {}), "name": f"{document['metadata']['name']}-{number}"}
            spec = copy.deepcopy(template["spec"])
            yield {
                "kind": "Pod",
                "apiVersion": "v1",
                "metadata": {**meta, "namespace": "default"},
                "spec": spec,
            }
            number += 1


def templates(document: Json) -> Iterator[tuple[int, Json]]:
    """The templates of a workload, and how many pods each makes."""
    spec = document["spec"]
    match document["kind"]:
        case "Deployment":
            yield spec["replicas"], spec["template"]
        case "Job":
            yield spec.get("parallelism", 1), spec["template"]
        case "JobSet":
            for job in spec["replicatedJobs"]:
                made = job["template"]["spec"]
                yield job["replicas"] * made.get("parallelism", 1), made["template"]
        case "PyTorchJob" | "MPIJob":
            replicas = spec.get("pytorchReplicaSpecs") or spec["mpiReplicaSpecs"]
            yield from ((each["replicas"], each["template"]) for each in replicas.values())
        case "RayCluster":
            yield 1, spec["headGroupSpec"]["template"]
            yield from ((group["replicas"], group["template"]) for group in spec["workerGroupSpecs"])
        case "LeaderWorkerSet":
            group = spec["leaderWorkerTemplate"]
            yield spec["replicas"] * group["size"], group["workerTemplate"]
        case kind:
            raise AssertionError(kind)
