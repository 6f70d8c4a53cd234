"""The interfaces of a sandbox: those of its pod's claims, and those of the annotation."""

from __future__ import annotations

from agent.machine import Machine, asks
from agent.test_claims import Running, machine, scenario
from factories import PF0, PF1
from resource_claims import interface

__all__ = ["machine"]


def test_pod_gets_prepared_interfaces_by_the_names_of_its_claims(machine: Machine) -> None:
    async def play(agent: Running) -> None:
        await agent.prepare(interface("z", bandwidth="25G", maxTxRate="40G"), uid="u2", name="b")
        await agent.prepare(interface("x", name="storage"), uid="u1", name="a")
        await agent.add()
        assert agent.vfs() == [(PF0, 1, "storage", 0, 0), (PF0, 0, "eth1", 25_000, 40_000)]
        await agent.delete()
        assert machine.is_pristine()

    scenario(machine, play)


def test_annotation_and_claims_of_one_pod_are_both_followed(machine: Machine) -> None:
    async def play(agent: Running) -> None:
        await agent.prepare(interface("a", bandwidth="60G"))
        await agent.add(annotations=asks({"min_tx_rate": 70_000}, {}))
        assert agent.vfs() == [
            (PF1, 0, "eth0", 70_000, 0),
            (PF1, 1, "eth1", 0, 0),
            (PF0, 0, "eth2", 60_000, 0),
        ]

    scenario(machine, play)
