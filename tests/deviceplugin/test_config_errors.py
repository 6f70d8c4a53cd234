"""Errors in a device plugin's file are refused before anything is served, and named."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from k8s_rdma.config.devices import load_device_config, pf_choice
from k8s_rdma.core.devices.pod_devices import PluginOptions, PluginRegistration
from k8s_rdma.errors import MalformedError
from k8s_rdma.kube.grpc_calls import RefusedCallError
from k8s_rdma.wire.cdi import is_resource_name
from k8s_rdma_demo.kubelet.plugins import check_registration

if TYPE_CHECKING:
    from pathlib import Path

LONG = "b" * 60


@pytest.mark.parametrize(
    ("resource", "named"),
    [
        (
            "{mode: exclusive, select: {pfs: ['eth0#0-999999999']}}",
            "'eth0#0-999999999': 0-999999999 is beyond 65535",
        ),
        ("{mode: exclusive, select: {pfs: ['eth0#5-2']}}", "'eth0#5-2': 5-2 ends before it begins"),
        (
            "{mode: exclusive, select: {pfs: ['eth0#0-3'], functions: pf}}",
            "'eth0#0-3': names VFs, and functions is pf",
        ),
        (
            "{mode: exclusive, name: k8s-rdma.io/claims}",
            "name: k8s-rdma.io/claims are the VFs for ResourceClaims",
        ),
        (
            f"{{mode: exclusive, name: a.b/{LONG}, share: 1}}",
            f"a.b/{LONG}-shared, which has more than 63 characters",
        ),
        (
            "{mode: exclusive, share: 1}, {mode: mount, name: tencent.com/rdma-shared}",
            "tencent.com/rdma-shared is offered twice",
        ),
        ("{mode: exact}, {mode: mount, name: k8s-rdma.io/slot}", "k8s-rdma.io/slot is offered twice"),
        ("{mode: exact}, {mode: exact, name: a.b/c}", "two are of mode exact"),
        (
            "{mode: exclusive, select: {pfs: ['0000:3:00.0']}}",
            "'0000:3:00.0'; wanted a netdev or a PCI address",
        ),
        ("{mode: exclusive, select: {pfs: [enp1s0f0np0v1234]}}", "'enp1s0f0np0v1234'; wanted a netdev"),
        ("{mode: exclusive, select: {pfs: ['eth0#']}}", "'eth0#'; wanted a netdev"),
        ("{mode: exact, count: 0}", r"resources\[0\].count: 0; wanted a whole number from 1 to 100000"),
        (
            "{mode: mount, name: kubernetes.io/x}",
            r"resources\[0\].name: 'kubernetes.io/x'; wanted a domain",
        ),
        ("{mode: mount, name: rdma}", r"name: 'rdma'; wanted a domain"),
        ("{mode: exakt}", r"resources\[0\].mode: exakt; wanted exact, mount, exclusive or shared"),
        ("{mode: [exact]}", r"resources\[0\].mode: \['exact'\]; wanted exact"),
        ("{name: a.b/c}", r"resources\[0\].mode: not set; wanted exact"),
        ("exact", r"resources\[0\]: is text; wanted a mapping of settings"),
        (
            "{mode: mount, scope: all}",
            r"resources\[0\].scope: all; wanted devices, directory or rdma-cm-only",
        ),
        (
            "{mode: exclusive, select: {pf: [eth0]}}",
            r"resources\[0\].select.pf: unknown key; did you mean pfs",
        ),
    ],
)
def test_mistake_in_a_resource_is_named(tmp_path: Path, resource: str, named: str) -> None:
    file = tmp_path / "plugin.yaml"
    file.write_text(f"resources: [{resource}]")
    with pytest.raises(MalformedError, match=named):
        load_device_config(str(file), {})


def test_pf_is_chosen_by_either_of_its_names() -> None:
    for text, pf in (("enp1s0f0np0v123", "enp1s0f0np0v123"), ("03:00.1", "0000:03:00.1")):
        assert (pf_choice(text).pf, pf_choice(text).vfs) == (pf, None)
        assert pf_choice(f"{text}#0-2,7").vfs == {0, 1, 2, 7}


def test_as_many_vfs_can_be_chosen_as_a_pf_can_have() -> None:
    assert len(pf_choice("eth0#0-65535").vfs or ()) == 65536


@pytest.mark.parametrize(
    "name",
    [
        "a.b/c",
        "rdma/hca_shared_devices_a",
        f"a/{'x' * 63}",
        f"a/{'x' * 64}",
        f"{'a.' * 121}ab/c",
        f"{'a.' * 121}abc/c",
        "kubernetes.io/c",
        "my.kubernetes.io/c",
        "kubernetes.io.a/c",
        "requests.a/c",
        "a..b/c",
        "a.-b/c",
        "A/c",
        "a/c-",
        "a/b/c",
        "a",
        "/c",
        "",
    ],
)
def test_names_of_resources_are_those_that_kubelet_takes(name: str) -> None:
    asked = PluginRegistration(resource=name, endpoint="a.sock", options=PluginOptions())
    try:
        check_registration(asked)
        taken = True
    except RefusedCallError:
        taken = False
    assert is_resource_name(name) == taken
