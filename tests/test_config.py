from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from k8s_rdma.config.agent import AgentConfig, load_device_plugin
from k8s_rdma.config.files import load_config
from k8s_rdma.config.placement_keys import extender_keys
from k8s_rdma.core.types import Enforce
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.placement_keys import PlacementKeys

if TYPE_CHECKING:
    from pathlib import Path


def load(directory: Path, text: str, **overrides: object) -> AgentConfig:
    (directory / "agent.yaml").write_text(text)
    return load_config(AgentConfig, str(directory / "agent.yaml"), overrides)


def test_config_is_defaults_then_file_then_overrides(tmp_path: Path) -> None:
    found = load(tmp_path, "node: w1\nrunDir: /a\nstateDir: /b\n", runDir="/c", stateDir=None)
    assert (found.node, found.run_dir, found.state_dir, found.host_root) == ("w1", "/c", "/b", "/")
    assert load(tmp_path, "", node="w1").node == "w1"
    assert (found.kernel, load(tmp_path, "node: w1", kernel="virtual").kernel) == ("linux", "virtual")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("node: w1\nruNdir: /a\n", "ruNdir: unknown key; did you mean runDir"),
        ("runDir: /a\n", "node: not set; wanted the node's name"),
        ("node: w1\nstrict: 5\n", "strict: is a number; wanted true or false"),
        ("node: w1\nkubeconfig: /a\ninCluster: true\n", "kubeconfig and inCluster: both are set"),
        ("node: w1\nkubeconfig: a\n", "kubeconfig: a; wanted an absolute path"),
        ("node: w1\nstuckAfterS: 0\n", "stuckAfterS: 0; wanted a number above 0"),
        (
            "node: w1\nhardware: {pfs: [{use: claims, claims: {vfs: 2, mbps: 500}}]}\n",
            r"hardware.pfs\[0\].claims: is a part of the PF, and use: claims is all of it; leave one out",
        ),
        (
            "node: w1\nhardware: {pfs: [{numVfs: 4, claims: {vfs: 5, mbps: 500}}]}\n",
            r"hardware.pfs\[0\].claims.vfs: 5 is more than numVfs, 4",
        ),
        ("node: w1\nhardware: {pfs: [{claims: {vfs: 1}}]}\n", r"hardware.pfs\[0\].claims.mbps: not set"),
        ("node: w1\nhardware: {pfs: [{claims: {vfs: 0, mbps: 1}}]}\n", r"hardware.pfs\[0\].claims.vfs: "),
        (
            "node: w1\nhardware: {pfs: [{enforce: Software}]}\n",
            r"hardware.pfs\[0\].enforce: Software; wanted hardware, software or auto",
        ),
        ("[]", "is a list; wanted a mapping of settings"),
        ("node: [\n", "line 2, column 1: "),
        ("node: w1\nstrict: true\nnode: w2\n", "line 3, column 1: the key 'node' stands twice"),
        ("node: w1\npublish: {renewS: 1, renewS: 2}\n", "line 2, column 22: the key 'renewS' stands twice"),
    ],
)
def test_config_error_is_one_line_with_file_and_field(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(MalformedError, match=why) as caught:
        load(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path}/agent.yaml: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("enforce", Enforce)
def test_config_says_who_enforces_the_rates_of_a_pf(tmp_path: Path, enforce: Enforce) -> None:
    found = load(tmp_path, f"{{node: w1, hardware: {{pfs: [{{names: [a]}}, {{enforce: {enforce}}}]}}}}")
    first, second = found.hardware.to_core().rules
    assert (first.enforce, second.enforce) == (Enforce.AUTO, enforce)


def test_config_file_that_is_missing_is_said_without_numbers(tmp_path: Path) -> None:
    with pytest.raises(MalformedError, match=r"none\.yaml: No such file or directory$"):
        load_config(AgentConfig, str(tmp_path / "none.yaml"), {})


def test_key_is_refused_when_missing_or_empty(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "key").write_text("sixteen bytes ok\n")
    (tmp_path / "short").write_text("fifteen bytes..\n")
    assert extender_keys(None)() is None
    assert extender_keys(str(tmp_path / "key"))() == PlacementKeys.shared(b"sixteen bytes ok")
    for name, why in (
        ("empty", "is empty"),
        ("short", "has a key of 120 bits; wanted 16 bytes"),
        ("none", "No such file"),
    ):
        with pytest.raises(MalformedError, match=why):
            extender_keys(str(tmp_path / name))


def test_device_plugins_file_is_refused_by_both_files_keys(tmp_path: Path) -> None:
    assert load_device_plugin(load(tmp_path, "node: w1\n")) is None
    plugin = tmp_path / "plugin.yaml"
    config = load(tmp_path, f"node: w1\ndevicePlugin: {plugin}\n")
    for text, why in (
        ("resources: [{mode: exact, kount: 1}]", "kount: unknown key; did you mean count"),
        ("[]", "mapping"),
    ):
        plugin.write_text(text)
        with pytest.raises(MalformedError, match=why) as caught:
            load_device_plugin(config)
        assert str(caught.value).startswith(f"devicePlugin: {plugin}: ")
    plugin.write_text("resources: [{mode: exact}]")
    assert load_device_plugin(config).resource_names() == ("k8s-rdma.io/slot",)
