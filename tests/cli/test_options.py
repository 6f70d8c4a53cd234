"""Options as kubectl's users type them: forms of output, namespaces, rates, help, and hints."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer

from cli.asking import k8s_rdma
from cli.test_holders import node_object, stored
from k8s_rdma.cli.main import app
from k8s_rdma.cli.rate_option import read_rate
from k8s_rdma.cli.usage import as_kubectl_writes, flow_help
from k8s_rdma.planning.snapshot import VERSION
from kube.stored_objects import serving_objects

if TYPE_CHECKING:
    from collections.abc import Iterator

RECORDED = str(Path(__file__).parents[1] / "recordings" / "snapshots" / f"{VERSION}.json")
PUBLIC = typer.main.get_command(app)
"""The tree of commands, with hidden ones left out by `commands`."""

TABLES = [
    *(
        "who",
        "top",
        "recommend",
        "explain pod",
        "rates set",
        "doctor node",
        "doctor cluster",
        "snapshot",
        "claim",
        "version",
    ),
    *("whatif fit", "whatif headroom", "whatif without", "whatif with", "verify node", "verify cluster"),
    *("agent adopt", "gather", "simulate"),
]


def commands(group: Any = PUBLIC, path: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if command.hidden:
            continue
        if hasattr(command, "commands"):
            yield from commands(command, f"{path}{name} ")
        else:
            yield f"{path}{name}", command


COMMANDS = dict(commands())


def options_of(command: Any) -> dict[str, Any]:
    return {word: option for option in command.params for word in option.opts}


@pytest.mark.parametrize("name", TABLES)
def test_every_command_that_prints_answers_takes_kubectls_forms(name: str):
    options = options_of(COMMANDS[name])
    assert options["-o"] is options["--output"]
    assert list(options["-o"].type.choices) == ["wide", "json", "yaml", "name"]
    assert options["--json"].is_flag == (name != "simulate"), "of `simulate` it names a file"


def test_option_of_one_name_is_the_same_everywhere():
    shared = ("--kubeconfig", "--context", "--cluster", "--user", "-o", "-A", "--chart-namespace")
    for name in shared:
        texts = {
            option.help
            for command in COMMANDS.values()
            for word, option in options_of(command).items()
            if word == name
        }
        assert len(texts) == 1, name


def test_namespace_is_that_of_pods_and_never_the_charts():
    for name, command in COMMANDS.items():
        option = options_of(command).get("-n")
        assert option is None or "chart" not in option.help, name


@pytest.mark.parametrize(
    ("text", "mbps"), [("0", 0), ("5000", 5000), ("5G", 5000), ("600M", 600), ("1.5G", 1500), ("2e9", 2000)]
)
def test_rate_is_in_mbps_or_a_quantity_of_bits_a_second(text: str, mbps: int):
    assert read_rate(text) == mbps


@pytest.mark.parametrize("text", ["", "5X", "-1", "1.5", "500k", "5Gi", "1000000T", "nan", "5 G"])
def test_malformed_rate_is_refused_with_an_example(text: str):
    with pytest.raises(typer.BadParameter, match=r"wanted a rate such as 5000|in whole Mb/s"):
        read_rate(text)


def test_option_may_be_joined_to_its_value_as_kubectl_allows():
    words = ["top", "-o=yaml", "-n=a", "-l=x=y", "--", "-o=json"]
    assert as_kubectl_writes(words) == ["top", "-o", "yaml", "-n", "a", "-l", "x=y", "--", "-o=json"]


@pytest.mark.anyio
async def test_who_takes_a_bare_name_for_a_pod_of_the_kubeconfigs_namespace(tmp_path: Path):
    nodes = [node_object("w1"), node_object("w2", namespace="team")]
    with serving_objects(stored(*nodes), tmp_path) as kubeconfig:
        asked = ("who", "--kubeconfig", kubeconfig, "-o", "json")
        found = {
            words: [row["namespace"] for row in json.loads((await k8s_rdma(*asked, *words)).out)["holders"]]
            for words in [
                (),
                ("p",),
                ("pod/p",),
                ("p", "-A"),
                ("-n", "team"),
                ("p", "-n", "team"),
                ("team/p",),
                ("w1", "-n", "team"),
            ]
        }
        absent = await k8s_rdma("who", "p", "-n", "none", "--kubeconfig", kubeconfig)
        named = await k8s_rdma("who", "-o=name", "--kubeconfig", kubeconfig)
    assert found == {
        (): ["default", "team"],
        ("p",): ["default"],
        ("pod/p",): ["default"],
        ("p", "-A"): ["default", "team"],
        ("-n", "team"): ["team"],
        ("p", "-n", "team"): ["team"],
        ("team/p",): ["team"],
        ("w1", "-n", "team"): [],
    }
    assert absent.status == 2
    assert "no node, PF or pod of namespace none that holds" in absent.err
    assert named.out == "pod/p\n"


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("get", "pods"), "get: k8s-rdma has no such command: `kubectl get rdmanodes` lists nodes"),
        (("toop",), "did you mean `k8s-rdma top`?"),
        (("whatif", "fitt"), "did you mean `k8s-rdma whatif fit`?"),
        (("explain", "trainer-0"), "did you mean `k8s-rdma explain pod trainer-0`?"),
        (("explain", "pod", "x", "-A"), "pods are named one by one"),
        (("doctor", "cluster", "-n", "kube-system"), "--chart-namespace names that of the chart"),
        (("whatif", "fit", "-A"), "this command is about all namespaces"),
        (("top", "-w"), "`top` shows changes as they come"),
        (("who", "-l", "a=b"), "not selected by labels"),
        (
            ("rates", "set", "x", "--min", "5Gbit"),
            "5Gbit: wanted a rate such as 5000, which is in Mb/s, or 5G",
        ),
        (("top", "-o", "xml"), "'xml' is not one of 'wide', 'json', 'yaml', 'name'"),
        (("who", "--json", "-o", "yaml"), "--json and --output yaml do not go together"),
    ],
    ids=[
        "get",
        "toop",
        "fitt",
        "explain",
        "all",
        "chart",
        "cluster",
        "watch",
        "label",
        "rate",
        "form",
        "two-forms",
    ],
)
async def test_command_line_that_is_not_ours_is_refused_with_a_hint(words: tuple[str, ...], hint: str):
    ran = await k8s_rdma(*words)
    assert (ran.status, ran.out) == (2, "")
    assert hint in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("name", [*COMMANDS, "", "explain", "rates", "doctor", "verify", "whatif"])
def test_help_is_made_of_paragraphs_without_breaks_of_their_own(name: str):
    flow_help(app)
    command: Any = typer.main.get_command(app)
    for word in name.split():
        command = command.commands[word]
    assert command.help
    for paragraph in command.help.split("\n\n"):
        assert "\n" not in paragraph


def test_process_does_not_load_modules_of_tables():
    program = "import sys, k8s_rdma.cli.main; print(sorted({'rich', 'yaml', 'httpx2'} & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
