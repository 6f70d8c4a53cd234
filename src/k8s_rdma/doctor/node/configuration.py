"""The agent's configuration file, by which everything else of a node is judged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.doctor.finding import Subject

if TYPE_CHECKING:
    from collections.abc import Iterator

    from k8s_rdma.doctor.finding import Finding

CONFIGURATION = Subject("configuration", "Configuration")
OK = CONFIGURATION.ok()
NO_AGENT_FILE = CONFIGURATION.warning("no-agent-file")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationFacts:
    """file: the agent's; None where there is none in any of the places `looked_for`."""

    file: str | None
    looked_for: tuple[str, ...]


def check_configuration(facts: ConfigurationFacts) -> Iterator[Finding]:
    """Report whether there is one."""
    if facts.file is not None:
        yield OK("the agent's file, by which the rest is judged", about=facts.file, source=facts.file)
        return
    yield NO_AGENT_FILE(
        "there is no agent.yaml: the rest is judged by the agent's defaults",
        source=" and ".join(facts.looked_for),
        expected="the agent's file",
        fix="k8s-rdma doctor node in the agent's container, or with --config FILE; docs/install.md where "
        "nothing is installed",
    )
