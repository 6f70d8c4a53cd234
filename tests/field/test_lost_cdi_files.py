"""CDI files that are gone while the records of their claims stay: /var/run is in memory on most hosts."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from agent.test_claims import Running, machine, scenario
from resource_claims import interface

if TYPE_CHECKING:
    from agent.machine import Machine

__all__ = ["machine"]


def lose_cdi_files(machine: Machine) -> None:
    shutil.rmtree(machine.directory / "host/var/run/cdi")


def test_files_lost_while_the_agent_was_away_are_written_at_its_start(machine: Machine) -> None:
    """A driver took its checkpoint's word that the claim was prepared, and no container could start any more.

    Source: https://github.com/ROCm/k8s-gpu-dra-driver/issues/75
    """
    written = set()

    async def before(agent: Running) -> None:
        await agent.prepare(interface("a", bandwidth="60G"))
        written.update(agent.cdi_files())

    async def after(agent: Running) -> None:
        assert machine.specifications is not None
        await machine.specifications.restore()
        assert agent.cdi_files() == written

    scenario(machine, before)
    assert written
    lose_cdi_files(machine)
    scenario(machine, after)


def test_files_lost_under_a_running_agent_are_written_when_kubelet_prepares_again(machine: Machine) -> None:
    """Kubelet calls NodePrepareResources again after its own restart, and got names that were not resolved.

    Source: https://github.com/kubernetes/kubernetes/pull/141619
    """

    async def play(agent: Running) -> None:
        names = await agent.prepare(interface("a", bandwidth="60G"))
        written = agent.cdi_files()
        lose_cdi_files(machine)
        assert await agent.prepare(interface("a", bandwidth="60G")) == names
        assert agent.cdi_files() == written != set()

    scenario(machine, play)
