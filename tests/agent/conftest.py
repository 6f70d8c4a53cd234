"""A pretended node, and plugins on it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from agent.machine import Machine
from agent.pods import ordinary
from agent.scripted_plugin import ScriptedPlugin, addresses
from k8s_rdma.wire.cni_result import SUPPORTED_VERSIONS

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    (tmp_path / "plugins").mkdir()
    return Machine(tmp_path)


@pytest.fixture
def ipam(machine: Machine) -> ScriptedPlugin:
    """Gives every interface an address of its own, by the last figure of its name."""
    made = ScriptedPlugin(machine.directory / "plugins", "ipam")
    made.speak(("0.2.0", *SUPPORTED_VERSIONS[3:]), ADD=addresses("10.1.0.'${CNI_IFNAME##*[a-z-]}'/24"))
    return made


@pytest.fixture
def main(machine: Machine) -> ScriptedPlugin:
    """The plugin that gives pods their ordinary interface; it speaks 1.0.0 at most."""
    made = ScriptedPlugin(machine.directory / "plugins", "main")
    made.speak(SUPPORTED_VERSIONS[:-1], ADD=f"echo '{json.dumps(ordinary('1.0.0'))}'")
    return made
