"""The processes of a node as doctor queries them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from http_server.certificates import Issuer
from k8s_rdma import __version__
from k8s_rdma.doctor.collectors.processes import process_facts
from k8s_rdma.doctor.node.processes import check_processes


def test_silent_process_is_reported(tmp_path):
    facts = process_facts(tmp_path / "state.sock", server="http://127.0.0.1:1", plugin=None)
    assert facts.why == f"{tmp_path}/state.sock: No such file or directory"
    assert facts.report is None
    assert facts.server is not None
    assert "refused" in facts.server.why
    assert facts.plugin is None


def test_deletions_that_are_left_to_the_agent_are_reported_with_advice(tmp_path):
    deletions = tmp_path / "deletions"
    deletions.mkdir()
    for name in (".17.4", *(f"c{number}:eth0:net" for number in range(5))):
        (deletions / name).touch()
    facts = process_facts(tmp_path / "state.sock", server=None, plugin=None)
    [found] = [each for each in check_processes(facts) if each.id == "processes-ends-left"]
    assert "wait for the agent: 5 (c0:eth0:net, c1:eth0:net, c2:eth0:net, ...)" in found.found
    assert (found.source, found.fix) == (str(deletions), "start the agent")


@pytest.mark.parametrize(("demanding", "version"), [(False, __version__), (True, "")])
def test_server_with_a_certificate_is_alive_also_when_it_demands_ours(tmp_path, demanding, version):
    issuer = Issuer(tmp_path).make()
    own = issuer.issue("server")
    tls = {"certFile": str(own.cert), "keyFile": str(own.key)}
    tls |= {"clientCaFile": str(issuer.own.cert)} if demanding else {}
    settings = {"listen": "127.0.0.1", "port": 0, "runDir": str(tmp_path), "tls": tls}
    (tmp_path / "server.yaml").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "k8s_rdma", "server", "--config", str(tmp_path / "server.yaml")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        lines = (json.loads(line) for line in server.stderr)
        port = next(line["port"] for line in lines if line["event"] == "server_ready")
        answer = process_facts(tmp_path / "none", server=f"https://127.0.0.1:{port}", plugin=None).server
        server.terminate()
    assert answer is not None
    assert (answer.why, answer.version) == ("", version)
