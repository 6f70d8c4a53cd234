"""Every manifest below examples/ is understood by every command that takes manifests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from k8s_rdma.cli.claim import print_manifests, print_templates
from k8s_rdma.cli.formats import Output
from k8s_rdma.config.manifests import documents
from k8s_rdma.config.pod_templates import pod_templates
from k8s_rdma.errors import MalformedError
from k8s_rdma.planning.manifest_workloads import read_workloads
from k8s_rdma.wire.annotation import requests_interfaces
from k8s_rdma.wire.claim_template import TemplateNames
from workloads import FILES, pods, workload

if TYPE_CHECKING:
    from collections.abc import Iterator

Json = dict[str, Any]
EXAMPLES = Path(__file__).parents[1] / "examples"
ASKING = ("rdma_interfaces_required", "k8s-rdma.io/interfaces")
NOTHING = "no interfaces: nothing has an annotation rdma_interfaces_required that asks for any"


def is_manifest(path: Path) -> bool:
    found = [each for each in yaml.safe_load_all(path.read_text()) if each]
    return all(isinstance(each, dict) and {"apiVersion", "kind"} <= each.keys() for each in found)


MANIFESTS = [path for path in sorted(EXAMPLES.rglob("*.yaml")) if is_manifest(path)]


def requests(value: Any) -> Iterator[Json]:
    """The annotations that ask for interfaces, wherever they are."""
    if isinstance(value, dict):
        if any(value.get(key) for key in ASKING):
            yield value
        for each in value.values():
            yield from requests(each)
    elif isinstance(value, list):
        for each in value:
            yield from requests(each)


def asking(path: Path) -> list[Json]:
    return [
        each for each in requests(list(yaml.safe_load_all(path.read_text()))) if requests_interfaces(each)
    ]


@pytest.fixture(params=MANIFESTS, ids=lambda path: str(path.relative_to(EXAMPLES)))
def path(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


def test_templates_are_all_found(path: Path):
    found = [each for document in documents(path.read_text()) for each in pod_templates(document).templates]
    annotations = [each.pod.get("metadata", {}).get("annotations", {}) for each in found]
    assert [each for each in annotations if requests_interfaces(each)] == asking(path)
    assert all(each.is_whole for each in found)


def test_pods_are_all_counted(path: Path):
    if not asking(path):
        with pytest.raises(MalformedError) as refused:
            read_workloads(path.read_text())
        assert refused.value.message.startswith(NOTHING)
        return
    found = read_workloads(path.read_text())
    assert len(found.workloads) == len(asking(path))
    assert not found.warnings


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_pods_are_as_many_as_the_workloads_controller_makes(file: Path):
    made = [
        pod for pod in pods(workload(file)) if requests_interfaces(pod["metadata"].get("annotations", {}))
    ]
    assert sum(each.count for each in read_workloads(file.read_text()).workloads) == len(made)


def test_pods_all_ask_by_claims_instead(path: Path, capsys: pytest.CaptureFixture[str]):
    if not asking(path):
        pytest.skip("asks for nothing")
    names = TemplateNames(name="")
    print_templates(None, path, None, names, Output())
    alone = list(yaml.safe_load_all(capsys.readouterr().out))
    print_manifests(path, None, names, Output())
    together = list(yaml.safe_load_all(capsys.readouterr().out))
    assert together[: len(alone)] == alone
    assert {each["kind"] for each in alone} == {"ResourceClaimTemplate"}
    rest = together[len(alone) :]
    assert not list(requests(rest))
    used = yaml.safe_dump(rest)
    assert all(f"resourceClaimTemplateName: {each['metadata']['name']}\n" in used for each in alone)
