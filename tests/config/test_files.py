from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from k8s_rdma.config.agent import AgentConfig
from k8s_rdma.config.files import load_config
from k8s_rdma.errors import MalformedError

if TYPE_CHECKING:
    from pathlib import Path


def load(directory: Path, text: str, **overrides: object) -> AgentConfig:
    (directory / "agent.yaml").write_text(text)
    return load_config(AgentConfig, str(directory / "agent.yaml"), overrides)


def test_config_is_defaults_then_file_then_overrides(tmp_path: Path) -> None:
    found = load(tmp_path, "node: w1\nrunDir: /a\nstateDir: /b\n", runDir="/c", stateDir=None)
    assert (found.node, found.run_dir, found.state_dir, found.host_root) == ("w1", "/c", "/b", "/")
    assert load(tmp_path, "", node="w1").node == "w1"
    assert (found.kernel, load(tmp_path, "node: w1", kernel="virtual").kernel) == ("linux", "virtual")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("node: w1\nruNdir: /a\n", "ruNdir: unknown key; did you mean runDir"),
        ("runDir: /a\n", "node: not set; wanted the node's name"),
        ("node: w1\nstrict: 5\n", "strict: is a number; wanted true or false"),
        ("node: w1\nkubeconfig: /a\ninCluster: true\n", "kubeconfig and inCluster: both are set"),
        ("node: w1\nkubeconfig: a\n", "kubeconfig: a; wanted an absolute path"),
        ("node: w1\nstuckAfterS: 0\n", "stuckAfterS: 0; wanted a number above 0"),
        (
            "node: w1\nhardware: {pfs: [{use: claims, claims: {vfs: 2, mbps: 500}}]}\n",
            r"hardware.pfs\[0\].claims: is a part of the PF, and use: claims is all of it; leave one out",
        ),
        (
            "node: w1\nhardware: {pfs: [{numVfs: 4, claims: {vfs: 5, mbps: 500}}]}\n",
            r"hardware.pfs\[0\].claims.vfs: 5 is more than numVfs, 4",
        ),
        ("node: w1\nhardware: {pfs: [{claims: {vfs: 1}}]}\n", r"hardware.pfs\[0\].claims.mbps: not set"),
        ("node: w1\nhardware: {pfs: [{claims: {vfs: 0, mbps: 1}}]}\n", r"hardware.pfs\[0\].claims.vfs: "),
        (
            "node: w1\nhardware: {pfs: [{enforce: Software}]}\n",
            r"hardware.pfs\[0\].enforce: Software; wanted hardware, software or auto",
        ),
        ("[]", "is a list; wanted a mapping of settings"),
        ("node: [\n", "line 2, column 1: "),
        ("node: w1\nstrict: true\nnode: w2\n", "line 3, column 1: the key 'node' stands twice"),
        ("node: w1\npublish: {renewS: 1, renewS: 2}\n", "line 2, column 22: the key 'renewS' stands twice"),
    ],
)
def test_config_error_is_one_line_with_file_and_field(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(MalformedError, match=why) as caught:
        load(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path}/agent.yaml: ")
    assert "\n" not in str(caught.value)


def test_config_file_that_is_missing_is_said_without_numbers(tmp_path: Path) -> None:
    with pytest.raises(MalformedError, match=r"none\.yaml: No such file or directory$"):
        load_config(AgentConfig, str(tmp_path / "none.yaml"), {})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hardwre: {}", "hardwre: unknown key; did you mean hardware?"),
        ("kernel: lnux", "kernel: lnux; wanted linux or virtual"),
        ("hardware: {pfs: [{names: eth0}]}", "hardware.pfs[0].names: is text; wanted a list, such as [eth0]"),
        (
            "hardware: {pfs: [{vendors: [mellanox]}]}",
            "hardware.pfs[0].vendors[0]: mellanox; wanted a PCI vendor, such as 15b3, or vendor and device",
        ),
        (
            "hardware: {pfs: [{pcis: [300.0]}]}",
            "hardware.pfs[0].pcis[0]: is a number; wanted a PCI address, such as 0000:03:00.0, in quotes",
        ),
        (
            "hardware: {pfs: [{names: ['enp*']}]}",
            "hardware.pfs[0].names[0]: enp*; wanted the whole name of a network device, such as enp1s0f0",
        ),
        ("strict:", "strict: is empty; wanted true or false"),
        ("publish: {renewS: 0}", "publish.renewS: 0; wanted a number above 0 and at most 3600"),
        ("publish: {vfResource: vf}", "publish.vfResource: 'vf'; wanted a domain"),
        (
            "node: |\n  worker-1\n",
            r"node: 'worker-1\n'; wanted the node's name in Kubernetes, such as worker-1, without the",
        ),
        (
            'hardware: {pfs: [{names: ["eth0\\n"]}]}',
            r"hardware.pfs[0].names[0]: 'eth0\n'; wanted the whole name of a network device",
        ),
        (
            'hardware: {pfs: [{drivers: ["a\\x07"]}]}',
            r"hardware.pfs[0].drivers[0]: 'a\x07'; wanted text, without the character U+0007",
        ),
        ('runDir: "/x\\n"', r"runDir: '/x\n'; wanted an absolute path, without the character U+000A"),
        ("1: 2", "1: unknown key; known are node, kernel, "),
    ],
)
def test_mistake_is_reported_in_these_words(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text(text)
    with pytest.raises(MalformedError) as refused:
        load_config(AgentConfig, str(file), {} if text.startswith("node:") else {"node": "w1"})
    assert refused.value.message.startswith(f"{file}: line 1: {said}")


def test_all_faults_are_reported_at_once_with_their_places(tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text(
        "hardwre: {}\nkernel: lnux\nhardware: {pfs: [{names: [eth0]}, {nams: [eth1], numVfs: -1}]}\n"
        "publish: {renewS: 0}"
    )
    with pytest.raises(MalformedError) as refused:
        load_config(AgentConfig, str(file), {"node": None, "runDir": "run"})
    assert refused.value.message.split("; also ") == [
        f"{file}: line 1: hardwre: unknown key; did you mean hardware?",
        f"node: not set; --node NAME, or node: in {file}",
        "line 2: kernel: lnux; wanted linux or virtual",
        "line 3: hardware.pfs[1].nams: unknown key; did you mean names?",
        "line 3: hardware.pfs[1].numVfs: -1; wanted a whole number of at least 0 or all",
        "command line: runDir: run; wanted an absolute path",
        f"{file}: line 4: publish.renewS: 0; wanted a number above 0 and at most 3600",
    ]


@pytest.mark.parametrize("name", ["W 1!", "w_1", "", ".w", "w" * 254])
def test_impossible_node_name_is_refused_by_its_setting(tmp_path: Path, name: str) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text(f"node: '{name}'")
    for overrides, where in (({"node": None}, f"{file}: line 1"), ({"node": name}, "command line")):
        with pytest.raises(MalformedError) as refused:
            load_config(AgentConfig, str(file), overrides)
        assert refused.value.message.startswith(f"{where}: node: ")
        assert refused.value.message.endswith("; wanted the node's name in Kubernetes, such as worker-1")


def test_missing_setting_is_reported_with_both_ways_to_give_it(tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text("strict: true")
    for path, place in ((None, "--config FILE"), (str(tmp_path / "agent.yaml"), tmp_path / "agent.yaml")):
        with pytest.raises(MalformedError) as refused:
            load_config(AgentConfig, path, {"node": None, "kernel": None})
        assert refused.value.message == f"node: not set; --node NAME, or node: in {place}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("node: w1\n\nstrict: 5\n", "line 3: strict: is a number"),
        ("node: w1\npublish:\n  renewS: 0\n", "line 3: publish.renewS: 0; wanted"),
        ("node: w1\npublish: {\n  renewX: 0}\n", "line 3: publish.renewX: unknown key"),
        ("node: w1\n'a.b c': 1\n", "line 2: a.b c: unknown key"),
        (
            "# none\nnode: w1\nhardware:\n  pfs:\n  - numVfs: 1\n  - {}\n  - numVfs: a\n",
            "line 7: hardware.pfs[2].numVfs",
        ),
        (
            "node: w1\nhardware:\n  pfs:\n  - claims:\n      vfs: 1\n",
            "line 4: hardware.pfs[0].claims.mbps: not set",
        ),
        ("node: w1\nkubeconfig: /a\ninCluster: true\n", "line 2: kubeconfig and inCluster: both are set"),
        ("strict: true\n", "node: not set"),
        ("[]\n", "is a list"),
        (
            "node: w1\nkubeconfig: a\nstrict: 5\n",
            "line 3: strict: is a number; wanted true or false; also line 2: kubeconfig",
        ),
    ],
)
def test_fault_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "agent.yaml").write_text(text)
    with pytest.raises(MalformedError) as refused:
        load_config(AgentConfig, str(tmp_path / "agent.yaml"), {})
    assert refused.value.message.startswith(f"{tmp_path}/agent.yaml: {message}")


def test_line_of_a_key_that_a_merge_brings_is_the_one_in_force(tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text(
        "hardware:\n  pfs:\n  - &pf\n    names: [a]\n    numVfs: 1\n  - <<: *pf\n    numVfs: -1\nnode: w1\n"
    )
    with pytest.raises(MalformedError, match=r"yaml: line 7: hardware.pfs\[1\].numVfs"):
        load_config(AgentConfig, str(tmp_path / "agent.yaml"), {})


def test_line_is_of_the_file_alone(tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text("node: w1\nkernel: linux\n")
    with pytest.raises(MalformedError, match=r"^command line: node: W; wanted"):
        load_config(AgentConfig, str(tmp_path / "agent.yaml"), {"node": "W"})
