"""Facts of `configuration`: in order, and for each kind of finding."""

from __future__ import annotations

from dataclasses import replace

from k8s_rdma.doctor.node.configuration import ConfigurationFacts, check_configuration

AGENT_FILE = "/etc/k8s-rdma/agent.yaml"
FILES = ConfigurationFacts(file=AGENT_FILE, looked_for=("/etc/k8s-rdma/config/agent.yaml", AGENT_FILE))
IN_ORDER = list(check_configuration(FILES))

CASES = {
    "configuration-no-agent-file": list(check_configuration(replace(FILES, file=None))),
}
