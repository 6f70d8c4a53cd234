"""The CNI_* variables: recorded calls of containerd, and what the specification forbids."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.wire.cni_request import COMMANDS, ifname_fault, parse_environment

RECORDINGS = sorted((Path(__file__).parents[1] / "recordings" / "cni").glob("*.json"))
ADD = {
    "CNI_COMMAND": "ADD",
    "CNI_CONTAINERID": "c1",
    "CNI_NETNS": "/run/netns/n1",
    "CNI_IFNAME": "eth0",
    "CNI_PATH": "/opt/cni/bin:/usr/lib/cni",
}


def refusal(variables: dict[str, str]) -> str:
    with pytest.raises(MalformedError) as refused:
        parse_environment(variables)
    assert refused.value.reason is Reason.INVALID_ENVIRONMENT
    assert refused.value.message.encode()
    return refused.value.message


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_environment_is_read_as_recorded(path: Path) -> None:
    variables = json.loads(path.read_text())["env"]
    call = parse_environment(variables)
    assert call.command == variables["CNI_COMMAND"]
    assert call.path == variables["CNI_PATH"]
    if call.command in ("ADD", "DEL", "CHECK"):
        assert call.container_id == variables["CNI_CONTAINERID"]
        assert call.netns == variables["CNI_NETNS"]
        assert call.ifname == variables["CNI_IFNAME"]
    else:
        assert (call.container_id, call.netns, call.ifname) == ("", None, "")


def test_environment_tells_the_pod_when_containerd_calls() -> None:
    [path] = [path for path in RECORDINGS if path.stem == "1.1.0-ADD-3"]
    call = parse_environment(json.loads(path.read_text())["env"])
    assert call.pod_namespace == "default"
    assert call.pod_name == "ns1"
    assert call.pod_uid == "7735cd8c-16fe-4c32-81b6-f3ce57d93afd"
    assert call.args["IgnoreUnknown"] == "1"
    assert call.raw_args.startswith("K8S_POD_UID=7735cd8c")


@pytest.mark.parametrize("args", ["", "K8S_POD_NAME=;K8S_POD_NAMESPACE=;K8S_POD_UID="])
def test_environment_without_a_pod_has_none(args: str) -> None:
    call = parse_environment({**ADD, "CNI_ARGS": args})
    assert (call.pod_namespace, call.pod_name, call.pod_uid) == (None, None, None)


def test_args_keep_the_text_behind_the_first_equals_sign() -> None:
    assert parse_environment({**ADD, "CNI_ARGS": "A=b=c;D="}).args == {"A": "b=c", "D": ""}


def test_netns_is_none_when_a_delete_comes_after_it_vanished() -> None:
    assert parse_environment({**ADD, "CNI_COMMAND": "DEL", "CNI_NETNS": ""}).netns is None


@pytest.mark.parametrize(
    ("command", "needed"),
    [
        ("ADD", {"CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"}),
        ("CHECK", {"CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"}),
        ("DEL", {"CNI_CONTAINERID", "CNI_IFNAME", "CNI_PATH"}),
        ("GC", {"CNI_PATH"}),
        ("STATUS", {"CNI_PATH"}),
        ("VERSION", set()),
    ],
)
@pytest.mark.parametrize("variable", ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"])
@pytest.mark.parametrize("value", ["", None])
def test_variable_is_missed_only_when_the_command_needs_it(
    command: str, needed: set[str], variable: str, value: str | None
) -> None:
    variables = {**ADD, "CNI_COMMAND": command, variable: value}
    given_ = {name: text for name, text in variables.items() if text is not None}
    if variable in needed:
        assert refusal(given_) == f"{variable}: not set, and {command} needs it"
    else:
        assert parse_environment(given_).command == command


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"CNI_COMMAND": "add"}, "CNI_COMMAND: add is none of ADD, DEL, CHECK, GC, STATUS, VERSION"),
        ({"CNI_COMMAND": ""}, "CNI_COMMAND: '' is none of ADD, DEL, CHECK, GC, STATUS, VERSION"),
        ({"CNI_CONTAINERID": "../x"}, "CNI_CONTAINERID: ../x must be"),
        ({"CNI_CONTAINERID": ".x"}, "CNI_CONTAINERID: .x must be"),
        ({"CNI_CONTAINERID": "a/b"}, "CNI_CONTAINERID: a/b must be"),
        ({"CNI_CONTAINERID": "a\n"}, r"CNI_CONTAINERID: 'a\n' must be"),
        ({"CNI_CONTAINERID": "é"}, r"CNI_CONTAINERID: '\xe9' must be"),
        ({"CNI_IFNAME": "a" * 16}, "CNI_IFNAME: aaaaaaaaaaaaaaaa is longer than 15 bytes"),
        ({"CNI_IFNAME": ".."}, "CNI_IFNAME: .. must not be"),
        ({"CNI_IFNAME": "a/b"}, "CNI_IFNAME: a/b must not be"),
        ({"CNI_IFNAME": "a b"}, "CNI_IFNAME: a b must not be"),
        ({"CNI_ARGS": "A"}, "CNI_ARGS: A is no KEY=VALUE pair"),
        ({"CNI_ARGS": "A=1;"}, "CNI_ARGS: '' is no KEY=VALUE pair"),
        ({"CNI_ARGS": "=1"}, "CNI_ARGS: =1 is no KEY=VALUE pair"),
        ({"CNI_ARGS": "\udcff"}, r"CNI_ARGS: '\udcff' is no KEY=VALUE pair"),
    ],
)
def test_environment_is_refused_naming_the_variable_when_malformed(
    variables: dict[str, str], message: str
) -> None:
    assert refusal({**ADD, **variables}).startswith(message)


@pytest.mark.parametrize("name", ["a", "eth0", "a" * 15, "a.b", "...", "éééé", "veth%d"])
def test_ifname_is_valid_when_the_kernel_takes_it(name: str) -> None:
    assert ifname_fault(name) is None


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a" * 16, "é" * 8, "a:1", "a/1", "a\t", "a\xa0b", "a\0", "\udcff" * 16]
)
def test_ifname_is_faulty_when_the_kernel_refuses_it(name: str) -> None:
    assert ifname_fault(name)


@given(
    st.dictionaries(
        st.sampled_from(
            ["CNI_COMMAND", "CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS", "CNI_PATH"]
        ),
        st.sampled_from([*COMMANDS, "a"]) | st.text(st.characters()),
    )
)
def test_parsing_raises_only_malformed_for_any_variables(variables: dict[str, str]) -> None:
    with contextlib.suppress(MalformedError):
        parse_environment(variables)
