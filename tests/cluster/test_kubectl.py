"""kubectl with all of deploy, the examples, and the commands that the documents print."""

from __future__ import annotations

import re
import shutil
from contextlib import asynccontextmanager
from itertools import chain
from typing import TYPE_CHECKING

import pytest
import yaml

from cluster.extenders import registration
from cluster.policies import SINCE, until
from cluster.processes import running
from cluster.publishers import VFS, prepare, publishing
from cluster.real import real
from cluster.test_dra_policies import SINCE as CLAIMS
from cluster.test_manifests import NAMESPACE, NEWEST, VALUES, rendered
from cluster.test_policies_injection import SINCE as INJECTION
from cluster.test_published_nodes import capacity, published
from cluster.typed import Shell, obstacle, printed, programs
from cluster.world import cluster
from documents import ROOT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from cluster.control_plane import Json

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(obstacle("kubectl")), reason=str(obstacle("kubectl"))),
]
STRICTLY = "--dry-run=server --validate=strict --warnings-as-errors"
OBJECT = re.compile(r"^apiVersion:", re.MULTILINE)
SERVED = re.compile(r"v1|(apps|batch|policy)/v1|\w+\.k8s\.io/v1")
"""Versions of kinds that an API server has without more."""
POLICIES = sorted((ROOT / "deploy" / "policies").glob("*.yaml"))
PRINTED = re.compile(r"^kubectl get pod reserved --output jsonpath=.*$", re.MULTILINE)
NEEDED = {"PriorityClass"}
"""Kinds that an API server wants to have before it takes other objects, also in a dry run."""
MALFORMED = '[{}, {"vlan": 4095}]'
MANIFESTS = ("host-network", "second-scheduler")


def objects(text: str) -> list[Json]:
    """Kubernetes objects in a text of YAML documents."""
    found = [
        yaml.safe_load(each) for each in re.split(r"^---$", text, flags=re.MULTILINE) if OBJECT.search(each)
    ]
    return [each for each in found if SERVED.fullmatch(each["apiVersion"])]


def shown(language: str = "yaml") -> Iterator[tuple[str, str]]:
    """Blocks of a language in the documents, also those in lists, with their pages."""
    fenced = re.compile(rf"^```{language}\n(.*?)^```$", re.DOTALL | re.MULTILINE)
    for page in sorted((ROOT / "docs").rglob("*.md")):
        yield from ((page.name, text) for text in fenced.findall(page.read_text()))


def examples() -> Iterator[tuple[str, Json]]:
    """Objects of the examples and the documents, as an administrator would save them."""
    files = ((str(path.relative_to(ROOT)), path.read_text()) for path in ROOT.glob("examples/**/*.yaml"))
    for name, text in chain(files, shown()):
        yield from ((name, each) for each in objects(text))


def files(release: tuple[int, int]) -> list[str | Path]:
    """Files of deploy with kinds that a release knows."""
    since = {"inject": INJECTION, **dict.fromkeys(("claims", "claims-order", "one-pod", "slices"), CLAIMS)}
    return [
        "deploy/crds",
        "deploy/rbac",
        *(each for each in POLICIES if release >= since.get(each.stem, SINCE)),
    ]


def words(text: str) -> str:
    """A text whose lines may be broken anywhere."""
    return " ".join(text.split())


def said_in(page: str, beginning: str) -> list[str]:
    """The blocks of a page that begin so."""
    fenced = re.findall(r"^```\n(.*?)^```$", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    return [words(each) for each in fenced if each.startswith(beginning)]


def train(annotation: str, **limits: str) -> Json:
    """A Deployment of pods with that annotation, which request these resources."""
    labels = {"app": "train"}
    container: Json = {"name": "c", "image": "registry.invalid/c:1", "resources": {"limits": limits}}
    meta = {"labels": labels, "annotations": {"rdma_interfaces_required": annotation}}
    template = {"metadata": meta, "spec": {"containers": [container]}}
    spec = {"selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "train"}, "spec": spec}


def saved(shell: Shell, name: str, document: Json) -> Path:
    """A file that holds an object."""
    path = shell.home / f"{name}.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


async def in_force(shell: Shell, path: Path, warning: str | None = None) -> None:
    """Wait until a policy refuses an object, or says a warning of it."""

    async def objected() -> bool:
        status, said = await shell.tries(f"kubectl apply --dry-run=server --filename {path}")
        return status != 0 if warning is None else warning in words(said)

    await until(objected)


@asynccontextmanager
async def namespaces_end(shell: Shell) -> AsyncIterator[None]:
    """kube-controller-manager takes away the objects in a namespace that is deleted."""
    command = (programs() / "kube-controller-manager", f"--kubeconfig={shell.kubeconfig}")
    options = ("--controllers=namespace", "--leader-elect=false", "--secure-port=0")
    async with running(shell.home / "namespaces.log", *command, *options):
        yield


async def test_kubectl_takes_every_file_to_the_letter(tmp_path: Path):
    async with real(tmp_path) as plane:
        shell = Shell.at(plane, tmp_path)
        await shell.types(f"kubectl create namespace {NAMESPACE}")
        for each in files(plane.release):
            await shell.types(f"kubectl apply {STRICTLY} --filename {each}")
        for name, values in VALUES.items():
            path = tmp_path / f"{name.replace(' ', '-')}.yaml"
            path.write_text(yaml.safe_dump_all(rendered(plane, values)))
            await shell.types(f"kubectl apply {STRICTLY} --filename {path}")
        for way in MANIFESTS if plane.release >= NEWEST else ():
            await shell.types(f"kubectl apply {STRICTLY} --kustomize deploy/manifests/{way}")


async def test_examples_are_taken_and_no_policy_refuses_them(tmp_path: Path):
    async with real(tmp_path) as plane:
        shell = Shell.at(plane, tmp_path)
        if plane.release >= SINCE:
            await shell.types("kubectl apply --filename deploy/policies/annotation.yaml")
            await in_force(shell, saved(shell, "refused", train(MALFORMED)))
        asked = [
            (name, each)
            for name, each in examples()
            if plane.release >= CLAIMS or (not name.endswith("dra.md") and "examples/claims" not in name)
        ]
        for namespace in {each["metadata"].get("namespace", "default") for _, each in asked} - {"default"}:
            await shell.types(f"kubectl create namespace {namespace}")
        for name, each in asked:
            how = "--validate=strict" if each["kind"] in NEEDED else STRICTLY
            path = saved(shell, "example", each)
            status, said = await shell.tries(f"kubectl apply {how} --filename {path}")
            assert status == 0, f"{name}: {said}"


async def test_page_installs_and_takes_all_away(tmp_path: Path):
    async with real(tmp_path) as plane:
        if plane.release < NEWEST:
            pytest.skip(f"Kubernetes {plane.release}: the manifests are for {NEWEST} and later")
        shutil.copytree(ROOT / "deploy" / "manifests", tmp_path / "deploy" / "manifests")
        shell = Shell.at(plane, tmp_path, directory=tmp_path)
        (install,) = printed("docs/install.md", __file__)
        await shell.types(install)
        assert not await shell.types("kubectl diff --kustomize deploy/mine")
        images = "{.items[*].spec.template.spec.containers[*].image}"
        used = await shell.types(
            f"kubectl get deployment,daemonset --namespace k8s-rdma --output jsonpath='{images}'"
        )
        assert {image.partition(":")[0] for image in used.split()} == {
            "registry.example/k8s-rdma",
            "registry.k8s.io/kube-scheduler",
        }
        restarted = await shell.types(
            "kubectl label namespace k8s-rdma pod-security.kubernetes.io/enforce=privileged\n"
            "kubectl --namespace k8s-rdma rollout restart daemonset/k8s-rdma-node"
        )
        assert "restarted" in restarted
        async with namespaces_end(shell):
            await shell.types("kubectl delete --kustomize deploy/mine")
        assert not await shell.types("kubectl get --kustomize deploy/mine --ignore-not-found --output name")


async def test_nodes_are_printed_as_the_pages_show_them(tmp_path: Path):
    async with cluster("real", tmp_path, "w1") as c:
        await prepare(c)
        shell = Shell.at(c.plane, tmp_path)
        async with publishing(c, c.nodes["w1"]):
            await published(c, "w1")
            await capacity(c, "w1", VFS)
            pages = ("docs/extender-configuration.md", "docs/agent.md")
            blocks = [text for page in pages for text in printed(page, __file__)]
            lists = [text.splitlines() for text in blocks if text.startswith("$ ")]
            assert len(lists) == 2
            for command, header, row in lists:
                columns, first = (await shell.types(command.removeprefix("$ "))).splitlines()
                assert columns.split() == header.split()
                assert len(first.split()) == len(row.split())
        (patch,) = (text for text in blocks if not text.startswith("$ "))
        await shell.types(patch)
        status = (await c.http.get("/api/v1/nodes/w1")).json()["status"]
        assert VFS not in status["capacity"]


async def test_refused_pod_is_described_with_numbers(tmp_path: Path):
    async with cluster("real", tmp_path, "w1") as c:
        extender = await c.running_extender()
        shell = Shell.at(c.plane, tmp_path)
        async with c.plane.scheduler(registration(extender.url)):
            await c.create_pod("big", 20_000)
            await c.event("big", "FailedScheduling")
            said = await shell.types("kubectl describe pod big")
        assert "RDMA Scheduler Extension: Node did not have enough free RDMA resources." in said
        assert "needs 1 interface of 20000 Mb/s" in said


async def test_interfaces_of_a_pod_are_printed_by_the_commands_of_the_page(tmp_path: Path):
    async with real(tmp_path) as plane:
        shell = Shell.at(plane, tmp_path)
        given = {"k8s-rdma.io/network-status": '[{"interface": "rdma0"}]', "k8s-rdma.io/placement": "{}"}
        container = {"name": "c", "image": "registry.invalid/c:1"}
        meta = {"name": "reserved", "annotations": given}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [container]}}
        await shell.types(f"kubectl apply --filename {saved(shell, 'reserved', pod)}")
        pages = (ROOT / "docs" / name for name in ("install.md", "howto-kubeadm.md"))
        asked = [each for page in pages for each in PRINTED.findall(page.read_text())]
        assert [await shell.types(each) for each in asked] == list(given.values())


async def test_policies_speak_as_the_page_shows(tmp_path: Path):
    async with real(tmp_path) as plane:
        if plane.release < SINCE:
            pytest.skip(f"Kubernetes {plane.release}: ValidatingAdmissionPolicy is of {SINCE} and later")
        shell = Shell.at(plane, tmp_path)
        (apply,) = printed("docs/policies.md", __file__)
        await shell.types(apply)
        refused = saved(shell, "refused", train(MALFORMED))
        await in_force(shell, refused)
        said = await shell.refused(f"kubectl apply --filename {refused}")
        assert said_in("docs/policies.md", "The deployments") == [words(said)]

        warned = saved(shell, "warned", train('[{"min_tx_rate": 1000}]'))
        for text in said_in("docs/policies.md", "Warning"):
            name = text.partition("'k8s-rdma-")[2].partition("'")[0]
            await shell.types(f"kubectl apply --filename deploy/policies/{name}.yaml")
            await in_force(shell, warned, text.removesuffix("..."))
