"""`k8s-rdma version`: for people, and for who must know whether two programs fit."""

from __future__ import annotations

import json
import platform
import re
from pathlib import Path

import pytest

from k8s_rdma import __version__
from k8s_rdma.cli.version import commit_of
from k8s_rdma.linux.receipts import VERSION as LEDGER
from k8s_rdma.wire.doctor import Speaks
from warm_program import run

DOCUMENT = Path(__file__).parents[2] / "docs" / "compatibility-versions.md"


def printed(*arguments: str) -> str:
    ran = run(arguments)
    ran.check_returncode()
    return ran.stdout


def test_version_is_a_line_for_people():
    assert printed("--version") == f"k8s-rdma {__version__}\n"
    assert printed("version").startswith(f"k8s-rdma {__version__}")
    assert printed("version").endswith(f", Python {platform.python_version()}\n")


def test_version_is_a_document_for_programs():
    document = json.loads(printed("version", "--json"))
    assert (document["version"], document["python"]) == (__version__, platform.python_version())
    assert document["commit"] is None or re.fullmatch("[0-9a-f]{40}", document["commit"])
    speaks = document["speaks"]
    assert (speaks["ledger"], speaks["rdma_node"]) == (LEDGER, "k8s-rdma.io/v1alpha1")
    assert speaks["cni"][-1] == "1.1.0"


@pytest.mark.parametrize(
    ("direct_url", "commit"),
    [
        (json.dumps({"url": "x", "vcs_info": {"vcs": "git", "commit_id": "a" * 40}}), "a" * 40),
        (json.dumps({"url": "file:///x", "dir_info": {"editable": True}}), None),
        ("no JSON", None),
        (None, None),
    ],
)
def test_commit_is_the_one_that_the_installer_recorded(direct_url, commit):
    assert commit_of(direct_url) == commit


def test_everything_that_is_spoken_is_documented_with_its_version():
    told = dict(re.findall(r"^\| `speaks\.(\w+)` \| ([^|]+) \|", DOCUMENT.read_text(), re.MULTILINE))
    spoken = {name: getattr(Speaks(ledger=LEDGER), name) for name in Speaks.__struct_fields__}
    words = {
        name: ", ".join(value) if isinstance(value, tuple) else str(value) for name, value in spoken.items()
    }
    assert {name: text.strip() for name, text in told.items()} == words
