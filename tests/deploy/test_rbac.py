"""Roles grant the code's calls, and no more: each call of the API server, each role of deploy/rbac."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from api_calls import EVENT, EXAMPLES, asked_of_the_api_server
from k8s_rdma.config.agent import PublishConfig
from k8s_rdma.config.extender import ExtenderConfig
from k8s_rdma.kube.chart_objects import EXTENDER_CONFIG
from k8s_rdma.kube.client import Client
from k8s_rdma.wire.claims import DRIVER
from syntax import syntax_tree

if TYPE_CHECKING:
    from collections.abc import Iterator

    Grant = tuple[str, str, str, str]
    """Namespace or EVERYWHERE, and a Call."""

pytestmark = pytest.mark.anyio

REPOSITORY = Path(__file__).parents[2]
SOURCE = REPOSITORY / "src" / "k8s_rdma"
ROLES = [
    document
    for file in sorted((REPOSITORY / "deploy" / "rbac").glob("*.yaml"))
    for document in yaml.safe_load_all(file.read_text())
]
EVERYWHERE = "*"
BINDERS, NODES = ExtenderConfig().lease_namespace, PublishConfig().lease_namespace


@dataclass(frozen=True)
class Process:
    """A process with an account of its own. code: files with its calls. within: those of one namespace.

    documents: those that it reads as `kube.documents.Documents`: group, resource and verb.
    """

    account: tuple[str, str]
    code: tuple[str, ...]
    within: dict[str, str]
    documents: frozenset[tuple[str, str, str]] = frozenset()

    def calls(self) -> set[str]:
        """The methods of the client that its code calls."""
        return {
            node.attr
            for pattern in self.code
            for file in SOURCE.glob(pattern)
            for node in ast.walk(syntax_tree(file))
            if isinstance(node, ast.Attribute) and node.attr in METHODS
        }


METHODS = {name for name in dir(Client) if not name.startswith("_") and name != "close"}
PROCESSES = {
    "agent": Process(
        ("k8s-rdma", "k8s-rdma-agent"),
        ("agent/**/*.py", "kube/event_recorder.py"),
        {"get_lease": NODES, "write_lease": NODES, "delete_lease": NODES},
    ),
    "device-plugin": Process(
        ("k8s-rdma", "k8s-rdma-device-plugin"),
        ("deviceplugin/**/*.py", "kube/event_recorder.py"),
        {"create_event": EVENT.about.namespace, "repeat_event": EVENT.about.namespace},
    ),
    "extender": Process(
        ("kube-system", "k8s-rdma-extender"),
        ("extender/**/*.py", "kube/leader_election.py", "kube/event_recorder.py"),
        {"get_lease": BINDERS, "write_lease": BINDERS, "follow_leases": NODES, "leases_version": NODES},
    ),
    "web": Process(
        ("k8s-rdma", "k8s-rdma-web"),
        ("web/*.py",),
        {},
        frozenset(  # `web.claim_pods.waiting_by_claim`
            {
                ("", "pods", "list"),
                ("resource.k8s.io", "deviceclasses", "list"),
                ("resource.k8s.io", "resourceclaims", "list"),
                ("resource.k8s.io", "resourceslices", "list"),
                ("resource.k8s.io", "resourceclaimtemplates", "get"),
            }
        ),
    ),
}


def test_every_method_of_the_client_is_called_here():
    assert set(EXAMPLES) == METHODS


DRIVER_VERBS = {
    (EVERYWHERE, "resource.k8s.io", "resourceclaims/driver", "associated-node:update"),
    (EVERYWHERE, "resource.k8s.io", "resourceclaims/driver", "associated-node:patch"),
}
"""Rights that the API server requires of a DRA driver besides the one to write a claim's status."""
STATUS = {(EVERYWHERE, "resource.k8s.io", "resourceclaims/status", "patch"), *DRIVER_VERBS}


@pytest.mark.parametrize("name", PROCESSES)
async def test_role_grants_every_verb_that_is_used_and_no_other(name: str, tmp_path: Path):
    process = PROCESSES[name]
    needed = {
        (process.within.get(method, EVERYWHERE), *asked)
        for method in process.calls()
        for example in EXAMPLES[method]
        for asked in await asked_of_the_api_server(example, tmp_path)
    }
    needed |= {(EVERYWHERE, *read) for read in process.documents}
    assert granted(*process.account) - DRIVER_VERBS == needed


def test_no_role_is_for_another_account_or_has_a_wildcard():
    rules = [rule for document in ROLES for rule in document.get("rules", ())]
    assert not any("*" in value for rule in rules for values in rule.values() for value in values)
    named = {
        (subject["kind"], subject["namespace"], subject["name"])
        for document in ROLES
        for subject in document.get("subjects", ())
    }
    assert named == {("ServiceAccount", *process.account) for process in PROCESSES.values()}


def test_rights_by_name_have_the_names_that_programs_use():
    by_name = [rule for document in ROLES for rule in document.get("rules", ()) if "resourceNames" in rule]
    assert [(rule["resources"], rule["resourceNames"]) for rule in by_name] == [
        (["resourceclaims/driver"], [DRIVER]),
        (["leases"], [ExtenderConfig().lease_name]),
        (["configmaps"], [EXTENDER_CONFIG]),
    ]


def test_only_the_device_plugin_writes_status_of_claims():
    holders = [name for name, process in PROCESSES.items() if STATUS & granted(*process.account)]
    assert holders == ["device-plugin"]
    assert granted(*PROCESSES["device-plugin"].account) >= STATUS


def granted(namespace: str, account: str) -> set[Grant]:
    """Return the rights that the roles give a service account."""
    subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
    return {
        grant
        for binding in ROLES
        if subject in binding.get("subjects", ())
        for grant in _grants(binding["metadata"].get("namespace", EVERYWHERE), _role_of(binding))
    }


def _role_of(binding: dict[str, Any]) -> dict[str, Any]:
    """The only one of that kind and name, in the binding's namespace."""
    wanted = binding["roleRef"]["kind"], binding["roleRef"]["name"], binding["metadata"].get("namespace")
    (role,) = (
        document
        for document in ROLES
        if (document["kind"], document["metadata"]["name"], document["metadata"].get("namespace")) == wanted
    )
    return role


def _grants(where: str, role: dict[str, Any]) -> Iterator[Grant]:
    for rule in role["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for verb in rule["verbs"]:
                    yield where, group, resource, verb
