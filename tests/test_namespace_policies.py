"""The operator's file of policies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from k8s_rdma.config.namespace_policies import load_policies, policies_of
from k8s_rdma.core.namespace_policy import NO_POLICIES
from k8s_rdma.errors import MalformedError
from policies import EXAMPLES

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        ("{name: a, namespaces: []}", r"policies\[0\].namespaces: is empty"),
        ("{namespaces: [a]}", r"policies\[0\].name: not set"),
        ("{name: a, namespaces: [A]}", r"namespaces\[0\]: A; wanted a namespace's name"),
        ("{name: a, namespaces: [a], alow: [vlan]}", "alow: unknown key; did you mean allow"),
        ("{name: a, namespaces: [a], allow: [vlans]}", r"allow\[0\]: vlans; wanted"),
        ("{name: a, namespaces: [a], deny: [vlan]}", r"deny\[0\]: vlan; wanted"),
        ("{name: a, namespaces: [a], vlans: [1]}", "vlans: says which ones, and allow has no vlan"),
        ("{name: a, namespaces: [a], allow: [vlan], vlans: [4095]}", "vlans"),
        ("{name: a, namespaces: [a], allow: [vlan], vlans: [9-1]}", "vlans: 9-1 begins after its end"),
        ("{name: a, namespaces: [a], allow: [vlan], vlans: [1-9999]}", "goes beyond 4094"),
        ("{name: a, namespaces: [a], allow: [mac], macs: ['02:0']}", r"macs\[0\]: 02:0; wanted a MAC"),
        (
            "{name: a, namespaces: [a], allow: [mac], macs: ['02:00:00:00:00:02-02:00:00:00:00:01']}",
            "macs: .* begins after its end",
        ),
        ("{name: a, namespaces: [a], pfs: {pci: 'x'}}", "pfs.pci: .* is not a PCI address"),
        ("{name: a, namespaces: [a], pfs: {}}", "pfs: selects nothing"),
        ("{name: a, namespaces: [a], pfs: {names: a}}", "names: unknown key; did you mean name"),
        ("{name: a, namespaces: [a], maxCapMbps: 0}", "maxCapMbps"),
        ("{name: a, namespaces: [a]}, {name: a, namespaces: [b]}", "policies: two are called a"),
    ],
)
def test_file_of_policies_is_refused_by_field(tmp_path: Path, policy: str, why: str):
    path = tmp_path / "policies.yaml"
    path.write_text(f"policies: [{policy}]")
    with pytest.raises(MalformedError, match=why) as caught:
        load_policies(str(path))
    assert str(caught.value).startswith(f"{path}: ")


def test_file_that_is_named_must_be_there(tmp_path: Path):
    with pytest.raises(MalformedError, match=r"none\.yaml: No such file"):
        policies_of(str(tmp_path / "none.yaml"))
    assert policies_of(None)() == NO_POLICIES


@pytest.mark.parametrize("path", sorted(EXAMPLES.iterdir()), ids=lambda path: path.name)
def test_examples_are_valid(path: Path):
    assert load_policies(str(path)).policies


def test_policies_are_read_again_when_kubelet_replaces_the_volume(tmp_path: Path):
    """As kubelet's AtomicWriter does: `..data` becomes a link to another directory."""
    for version, name in enumerate(("a", "b")):
        (tmp_path / f"v{version}").mkdir()
        text = f"policies: [{{name: {name}, namespaces: [x]}}]"
        (tmp_path / f"v{version}" / "policies.yaml").write_text(text)
    data, now = tmp_path / "..data", [0.0]
    data.symlink_to("v0")
    found = policies_of(str(data / "policies.yaml"), clock=lambda: now[0])
    assert found().policy_for("x").name == "a"
    (tmp_path / "new").symlink_to("v1")
    (tmp_path / "new").replace(data)
    now[0] += 1
    assert found().policy_for("x").name == "b"
    (data / "policies.yaml").write_text("policies: 5")
    now[0] += 1
    assert found().policy_for("x").name == "b"
