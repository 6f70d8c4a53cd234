"""The agent's configuration file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.doctor.subject import Subject

if TYPE_CHECKING:
    from collections.abc import Iterator

    from k8s_rdma.doctor.finding import Finding

CONFIGURATION = Subject("configuration", "Configuration")
CONFIGURATION_OK = CONFIGURATION.ok()
NO_AGENT_FILE = CONFIGURATION.warning("no-agent-file")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationFacts:
    """The agent's configuration file. file: its path, if it is in one of the places `looked_for`."""

    file: str | None
    looked_for: tuple[str, ...]


@CONFIGURATION.check(ConfigurationFacts)
def check_configuration(facts: ConfigurationFacts) -> Iterator[Finding]:
    """Check that the agent's configuration file exists."""
    if facts.file is not None:
        yield CONFIGURATION_OK(
            "the agent's file, which the other checks use", about=facts.file, source=facts.file
        )
        return
    yield NO_AGENT_FILE(
        "no agent.yaml: the other checks use the defaults",
        source=" and ".join(facts.looked_for),
        expected="the agent's file",
        fix="run it in the agent's container, or with --config FILE",
    )
