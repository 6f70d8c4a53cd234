"""Files, processes and programs of a node."""

from __future__ import annotations

from pathlib import Path

import pytest

from doctor.host_files import process, put
from k8s_rdma.doctor.collectors.host import Host, Process


@pytest.mark.parametrize("argument", ["--config=/x", "--config\0/x"])
def test_option_is_found_in_both_forms(argument):
    assert Process(pid=1, name="crio", arguments=("crio", *argument.split("\0"))).option("--config") == "/x"


def test_option_without_a_value_counts_as_absent():
    assert Process(pid=1, name="crio", arguments=("crio", "--config")).option("--config") is None


def test_processes_are_those_of_the_names_and_their_arguments_without_empty_ones(host):
    process(host, 40, "crio", "--config", "", "/x")
    process(host, 7, "kubelet")
    process(host, 8, "other")
    put(host, "/proc/version", "Linux")
    found = list(host.processes(frozenset({"crio", "kubelet", "absent"})))
    assert [(each.pid, each.name) for each in found] == [(7, "kubelet"), (40, "crio")]
    assert found[1].arguments == ("crio", "--config", "/x")


@pytest.mark.parametrize(("soft", "limit"), [("8388608", 8 << 20), ("unlimited", None)])
def test_limit_of_locked_memory_is_read_in_bytes(host, soft, limit):
    process(host, 40, "crio", soft=soft)
    assert host.memlock(40) == limit


def test_limits_without_locked_memory_are_an_error(host):
    put(host, "/proc/40/limits", "Max open files 1 1 files\n")
    with pytest.raises(OSError, match="/proc/40/limits: no line Max locked memory"):
        host.memlock(40)


def test_executable_of_a_process_is_that_of_its_link_if_the_kernel_shows_it(host):
    process(host, 40, "crio")
    assert host.program(40) is None
    (host.root / "proc/40/exe").symlink_to("/usr/bin/crio")
    assert host.program(40) == "/usr/bin/crio"


def test_program_gets_input_and_variables_and_its_failure_is_an_error_with_its_words():
    node = Host(Path("/"))
    command = ("sh", "-c", 'cat; printf "$GREETING"')
    assert node.run(command, stdin=b"hello ", environment={"GREETING": "node"}) == b"hello node"
    with pytest.raises(OSError, match=r"exit status 3.*no such thing"):
        node.run(("sh", "-c", "echo no such thing >&2; exit 3"), environment={})
