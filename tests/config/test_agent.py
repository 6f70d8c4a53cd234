from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from k8s_rdma.config.agent import AgentConfig, load_device_plugin
from k8s_rdma.config.files import load_config
from k8s_rdma.core.types import Enforce
from k8s_rdma.errors import MalformedError

if TYPE_CHECKING:
    from pathlib import Path


def load(directory: Path, text: str) -> AgentConfig:
    (directory / "agent.yaml").write_text(text)
    return load_config(AgentConfig, str(directory / "agent.yaml"), {})


@pytest.mark.parametrize("enforce", Enforce)
def test_config_says_who_enforces_the_rates_of_a_pf(tmp_path: Path, enforce: Enforce) -> None:
    found = load(tmp_path, f"{{node: w1, hardware: {{pfs: [{{names: [a]}}, {{enforce: {enforce}}}]}}}}")
    first, second = found.hardware.to_core().rules
    assert (first.enforce, second.enforce) == (Enforce.AUTO, enforce)


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
