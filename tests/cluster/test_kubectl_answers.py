"""kubectl's output for an API server, beside a transcript of kube-apiserver 1.36.2 and kubectl 1.36.2."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import yaml

from cluster.publishers import CRD
from cluster.real import FOLDER, real
from cluster.standin import StandIn
from cluster.typed import Shell
from documents import ROOT
from k8s_rdma_demo.cluster.api import ApiConfig, serving_api
from k8s_rdma_demo.cluster.command import SYSTEM_NAMESPACES
from k8s_rdma_demo.cluster.fields import FIELDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from cluster.control_plane import ControlPlane

TRANSCRIPT = ROOT / "tests" / "recordings" / "kubectl.txt"
RECORDED = (1, 36)
"""The release of the transcript."""
GROUPS = ("api/v1", "apis/coordination.k8s.io/v1")


def kubectl_release() -> tuple[int, ...] | None:
    """The release of kubectl in the folder or on PATH, if there is one."""
    program = shutil.which("kubectl", path=os.pathsep.join([os.environ.get(FOLDER, ""), os.environ["PATH"]]))
    if program is None:
        return None
    command = [program, "version", "--client", "--output", "json"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    found = re.search(r'"gitVersion": "v(\d+)\.(\d+)', answer)
    return tuple(map(int, found.groups())) if found else None


pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        kubectl_release() != RECORDED, reason=f"needs kubectl 1.36 in the folder {FOLDER} or on PATH"
    ),
]

# Values that differ between two runs. A line's blanks depend on the width of its columns.
VARYING = (
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "<uid>"),
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "<time>"),
    (r"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d \+0000", "<time>"),
    (r"(resourceVersion: \"?|Resource Version: +)\d+", r"\1<version>"),
    (r"(Client Version: v\d+\.\d+)\.\d+", r"\1"),
    (r"\b\d+(m\d+)?s\b", "<age>"),
    (r"https?://127\.0\.0\.1:\d+", "<url>"),
    (r" +$", ""),
    (r"(?<=\S) {2,}", "  "),
)


def comparable(text: str) -> str:
    """A text without the values that differ between two runs."""
    for pattern, stands_for in VARYING:
        text = re.sub(pattern, stands_for, text, flags=re.MULTILINE)
    return text.rstrip()


def commands() -> list[str]:
    """The transcript's commands."""
    return re.findall(r"^\$ (.*)$", TRANSCRIPT.read_text(), re.MULTILINE)


async def transcript(plane: ControlPlane, home: Path) -> str:
    """Type the commands; the output on a terminal."""
    shell = Shell.at(plane, home)
    blocks = []
    for command in commands():
        status, printed = await shell.tries(command)
        ended = f"\n[{status}]" if status else ""
        blocks.append(f"$ {command}\n{comparable(printed)}{ended}")
    return "\n".join(blocks) + "\n"


@asynccontextmanager
async def open_to_all(directory: Path) -> AsyncIterator[ControlPlane]:
    """The stand-in as in the demo: without TLS, kubectl sends no token."""
    async with serving_api(ApiConfig(namespaces=SYSTEM_NAMESPACES)) as api:
        yield StandIn(api.url, "none", directory)


@asynccontextmanager
async def api_server(kind: str, directory: Path) -> AsyncIterator[ControlPlane]:
    """An API server that serves our custom resource."""
    async with real(directory) if kind == "real" else open_to_all(directory) as plane:
        if plane.release < RECORDED:
            pytest.skip(f"Kubernetes {plane.release}: the transcript is of {RECORDED}")
        await plane.add_crd(yaml.safe_load(CRD.read_text()))
        yield plane


async def test_kubectl_prints_the_same_as_with_a_real_api_server(kind: str, tmp_path: Path):
    async with api_server(kind, tmp_path) as plane:
        assert (await transcript(plane, tmp_path)).splitlines() == TRANSCRIPT.read_text().splitlines()


async def test_kubectl_creates_a_token_of_a_service_account(kind: str, tmp_path: Path):
    async with api_server(kind, tmp_path) as plane:
        shell = Shell.at(plane, tmp_path)
        await shell.types("kubectl create serviceaccount reader")
        status, printed = await shell.tries("kubectl create token reader")
    assert status == 0, printed
    assert re.fullmatch(r"[-._\w]{30,}", printed.strip())


async def test_server_side_apply_is_refused_with_an_alternative(tmp_path: Path):
    async with open_to_all(tmp_path) as plane:
        status, printed = await Shell.at(plane, tmp_path).tries(
            "kubectl create configmap a --dry-run=client -o yaml | kubectl apply --server-side -f -"
        )
    assert status == 1
    assert "use kubectl apply without --server-side" in printed


NOT_LISTED = {"selfLink", "configSource", "externalID", "config", "features"}
"""Fields that no server fills any more, and alpha ones."""


async def test_field_tables_are_those_of_the_real_openapi(kind: str, tmp_path: Path):
    if kind == "stand-in":
        pytest.skip("the stand-in's OpenAPI is made of the tables")
    async with real(tmp_path) as plane, plane.client() as http:
        if plane.release < RECORDED:
            pytest.skip(f"Kubernetes {plane.release}: the tables are of {RECORDED}")
        documents = [(await http.get(f"/openapi/v3/{path}")).json() for path in GROUPS]
    schemas = {
        name.rpartition(".")[2]: schema
        for document in documents
        for name, schema in document["components"]["schemas"].items()
    }
    assert FIELDS.keys() <= schemas.keys()
    for name, fields in FIELDS.items():
        properties = schemas[name]["properties"]
        assert properties.keys() - NOT_LISTED == fields.keys(), name
        keys = {key: each.get("x-kubernetes-patch-merge-key") for key, each in properties.items()}
        assert {field.name: field.merge_key or None for field in fields.values()} == {
            key: keys[key] for key in fields
        }, name
