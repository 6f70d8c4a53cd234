"""Rights of our processes, beside those that the manifests grant."""

from __future__ import annotations

import pytest
import yaml

from doctor.cases.scheduler import ROOT
from k8s_rdma.doctor.cluster.rights import ACCOUNTS, rights


def granted() -> set[tuple[str, str, str, str]]:
    """Account, group, resource and verb of every rule of deploy/rbac."""
    documents = [
        document
        for path in (ROOT / "deploy" / "rbac").glob("*.yaml")
        for document in yaml.safe_load_all(path.read_text())
    ]
    rules = {(each["kind"], each["metadata"]["name"]): each["rules"] for each in documents if "rules" in each}
    return {
        (subject["name"], group, resource, verb)
        for binding in documents
        if "roleRef" in binding
        for subject in binding["subjects"]
        for rule in rules[binding["roleRef"]["kind"], binding["roleRef"]["name"]]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@pytest.mark.parametrize("process", ACCOUNTS)
def test_manifests_grant_the_documented_rights_of_a_process(process):
    wanted = rights(
        process, leases="k8s-rdma", lease_of_binder=("kube-system", "k8s-rdma-extender"), crd=True
    )
    assert wanted
    missing = [
        str(each)
        for each in wanted
        if (ACCOUNTS[process], each.group, each.resource, each.verb) not in granted()
    ]
    assert not missing
