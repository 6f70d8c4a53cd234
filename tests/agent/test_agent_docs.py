"""docs/agent.md has every key of the agent's configuration."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from k8s_rdma.config.agent import AgentConfig

DOCS = Path(__file__).parents[2] / "docs" / "agent.md"


def test_every_key_of_the_configuration_is_documented() -> None:
    section = DOCS.read_text().partition("## Configuration")[2].partition("\n## ")[0]
    documented = {
        key for row in re.findall(r"^\| ([^|]+) \|", section, re.M) for key in re.findall(r"`(\w+)`", row)
    }
    assert documented == {field.encode_name for field in msgspec.structs.fields(AgentConfig)}
