"""Answers of the program by itself, and that it asks about everything else. No agent runs here: whatever
is asked about ends in error 11, but for CHECK.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import socket
import subprocess

import pytest

from cni.call import (
    ANNOTATIONS,
    CONTAINER,
    DEADLINE_S,
    NETNS,
    OBEYING_FILE_MODES,
    PREV_RESULT,
    WISH,
    Program,
    chained,
    netconf,
)
from k8s_rdma.errors import TRY_AGAIN_LATER
from k8s_rdma.wire.annotation import ANNOTATION
from k8s_rdma.wire.cni_result import SUPPORTED_VERSIONS
from k8s_rdma.wire.network_status import NETWORK_STATUS_ANNOTATION
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION

NOTHING_OF_OURS = [
    {},
    None,
    {"kubernetes.io/config.source": "api"},
    {"rdma_interfaces_required": ""},
    {"rdma_interfaces_required": " \t\r\n"},
    {"rdma_interfaces_required": "[]"},
    {"k8s-rdma.io/interfaces": " []"},
    {"rdma_interfaces_required": " [ \n ] "},
    {"rdma_interfaces_requiredx": "[{}]", "xrdma_interfaces_required": "[{}]"},
    {"note": '"rdma_interfaces_required": "[{}]"', "other": "k8s-rdma.io/placement"},
    {"nested": {"rdma_interfaces_required": "[{}]"}},
    {"k8s-rdma.io": "no slash"},
    {"k8s-rdma.io/": "", "k8s-rdma.io/placements": "x", "k8s-rdma.io/network-status": "[{}]"},
    {"K8S-RDMA.IO/placement": "keys know upper case"},
]
SOMETHING_OF_OURS = [
    WISH,
    {"rdma_interfaces_required": "[{}]"},
    {"rdma_interfaces_required": "["},
    {"k8s-rdma.io/interfaces": "[{}]"},
    {"k8s-rdma.io/interfaces": "[{}]", "rdma_interfaces_required": "[]"},
    {"rdma_interfaces_required": "]"},
    {"rdma_interfaces_required": "[[]]"},
    {"rdma_interfaces_required": "[][]"},
    {"rdma_interfaces_required": "null"},
    {"rdma_interfaces_required": "\u00a0"},
    {"rdma_interfaces_required": []},
    {"rdma_interfaces_required": None},
    {"k8s-rdma.io/placement": ""},
    {"rdma_interfaces_required": "[]", "k8s-rdma.io/placement": "x"},
]
NOT_DELIVERED = [
    {"runtimeConfig": {}},
    {"runtimeConfig": None},
    {"runtimeConfig": "text"},
    {"runtimeConfig": {ANNOTATIONS: "text"}},
    {"runtimeConfig": {ANNOTATIONS: []}},
    {"runtimeConfig": {"nested": {ANNOTATIONS: {}}}},
    {ANNOTATIONS: {}, "runtimeConfig": {}},
]


def mark(run_dir) -> None:
    (run_dir / "attachments" / CONTAINER).touch()


def assert_asked(outcome) -> None:
    assert outcome.error["code"] == TRY_AGAIN_LATER


def assert_silent(outcome) -> None:
    assert (outcome.exit_status, outcome.stdout) == (0, b"")


@pytest.mark.parametrize("asked", ["0.2.0", "0.4.0", "1.1.0", "9.9.9", "\x01é"])
def test_version_names_the_requested_version(program: Program, asked: str) -> None:
    outcome = program("VERSION", {"cniVersion": asked}, env={"CNI_CONTAINERID": "", "CNI_NETNS": "dummy"})
    assert outcome.exit_status == 0
    assert json.loads(outcome.stdout) == {
        "cniVersion": asked,
        "supportedVersions": list(SUPPORTED_VERSIONS),
    }


@pytest.mark.parametrize(("stdin", "named"), [(b"", "1.1.0"), (b"{}", "0.1.0")])
def test_version_names_the_default_of_an_input_without_version(program, stdin: bytes, named: str) -> None:
    assert json.loads(program("VERSION", stdin).stdout) == {
        "cniVersion": named,
        "supportedVersions": list(SUPPORTED_VERSIONS),
    }


def test_status_succeeds_when_the_agent_never_ran(program: Program, tmp_path) -> None:
    variables = dict.fromkeys(["CNI_CONTAINERID", "CNI_IFNAME", "CNI_NETNS", "CNI_ARGS"], "")
    for keys in ({}, {"delegate": None}, {"delegate": {}, "emptyResult": False}, {"emptyResult": None}):
        assert_silent(program("STATUS", netconf(tmp_path / "absent", **keys), env=variables))


@pytest.mark.parametrize("keys", [{"delegate": {"type": "bridge"}}, {"emptyResult": True}])
def test_status_says_not_available_when_pods_need_the_agent_and_it_is_dead(program, run_dir, keys) -> None:
    error = program("STATUS", netconf(run_dir, **keys)).error
    assert error["code"] == 50
    assert "cannot be reached" in error["msg"]


@pytest.mark.parametrize("annotations", NOTHING_OF_OURS)
def test_add_passes_prev_result_on_if_a_chained_pod_has_no_request(program, run_dir, annotations) -> None:
    outcome = program("ADD", chained(run_dir, annotations))
    assert outcome.exit_status == 0
    assert json.loads(outcome.stdout) == PREV_RESULT


@pytest.mark.parametrize(
    "raw",
    [
        b"{}",
        b'{ "b" :1,\n\t"a": [ 1.50e+3 , -0, true,null ] , "a":2}',
        '{"dns":"ü\\u00fc\\ud83d\\ude00\\"}\\\\","x":"{\\"prevResult\\":1}"}'.encode(),
        b'{"big":"' + b"x" * 1_000_000 + b'"}',
    ],
    ids=["empty", "layout", "escapes", "big"],
)
def test_add_passes_prev_result_on_byte_by_byte(program, raw: bytes) -> None:
    head = json.dumps({"cniVersion": "1.1.0", "runtimeConfig": {ANNOTATIONS: {}}}).encode()[:-1]
    outcome = program("ADD", head + b',"prevResult" :\r\n' + raw + b' , "z":{"prevResult":{"no":1}}}\n')
    assert (outcome.exit_status, outcome.stdout) == (0, raw)


@pytest.mark.parametrize("annotations", SOMETHING_OF_OURS)
def test_add_asks_when_the_pod_has_something_of_ours(program, run_dir, netns, annotations) -> None:
    assert_asked(program("ADD", chained(run_dir, annotations), env={"CNI_NETNS": netns}))


def test_annotations_that_ask_are_those_that_the_agent_reads(program, run_dir, netns) -> None:
    for asks in (ANNOTATION, PLACEMENT_ANNOTATION):
        assert_asked(program("ADD", chained(run_dir, {asks: "[{}]"}), env={"CNI_NETNS": netns}))
    told = {NETWORK_STATUS_ANNOTATION: '[{"name": "rdma"}]'}
    assert program("ADD", chained(run_dir, told)).exit_status == 0


@pytest.mark.parametrize(
    "escaped", [rb"\u0072dma_interfaces_required", rb"rdm\u0061_interfaces_require\u0064"]
)
def test_add_asks_when_the_key_is_written_with_escapes(program, run_dir, netns, escaped: bytes) -> None:
    plain = json.dumps(chained(run_dir, WISH)).encode()
    disguised = plain.replace(b"rdma_interfaces_required", escaped)
    assert disguised != plain
    assert_asked(program("ADD", disguised, env={"CNI_NETNS": netns}))


def test_add_asks_when_one_of_two_equal_annotations_asks(program, run_dir, netns) -> None:
    key = '"rdma_interfaces_required"'
    conf = json.dumps(chained(run_dir, {"at": "here"})).replace('"at": "here"', f'{key}:"[{{}}]",{key}:"[]"')
    assert_asked(program("ADD", conf.encode(), env={"CNI_NETNS": netns}))


@pytest.mark.parametrize("keys", NOT_DELIVERED)
def test_add_asks_when_the_annotations_were_not_delivered(program, run_dir, netns, keys) -> None:
    assert_asked(program("ADD", chained(run_dir, **keys), env={"CNI_NETNS": netns}))


@pytest.mark.parametrize("prev_result", [{}, {"prevResult": None}, {"prevResult": "text"}])
def test_add_asks_when_not_chained(program, run_dir, netns, prev_result) -> None:
    conf = netconf(run_dir, runtimeConfig={ANNOTATIONS: {}}, **prev_result)
    assert_asked(program("ADD", conf, env={"CNI_NETNS": netns}))


def test_add_asks_when_a_delegate_stands_beside_another_plugin(program, run_dir, netns) -> None:
    conf = chained(run_dir, {}, delegate={"type": "bridge"})
    assert_asked(program("ADD", conf, env={"CNI_NETNS": netns}))


def test_error_of_a_dead_agent_has_its_path_and_advice(program, run_dir, netns) -> None:
    conf = chained(run_dir, WISH, cniVersion="0.4.0")
    assert program("ADD", conf, env={"CNI_NETNS": netns}).error == {
        "cniVersion": "0.4.0",
        "code": TRY_AGAIN_LATER,
        "msg": f"the k8s-rdma agent of this node cannot be reached at {run_dir}/cni.sock: "
        "see whether its pod runs here; try again later",
        "details": "connect: No such file or directory",
    }


def test_error_of_a_dead_agent_comes_when_it_left_its_socket_behind(program, run_dir, netns) -> None:
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(run_dir / "cni.sock"))
    outcome = program("ADD", netconf(run_dir), env={"CNI_NETNS": netns})
    assert outcome.error["details"] == "connect: Connection refused"


FIRST_VERSION = {"ADD": "0.1.0", "DEL": "0.1.0", "CHECK": "0.4.0", "GC": "1.1.0", "STATUS": "1.1.0"}


@pytest.mark.parametrize("command", FIRST_VERSION)
@pytest.mark.parametrize("version", SUPPORTED_VERSIONS)
def test_error_is_in_the_requested_version(program, run_dir, netns, command: str, version: str) -> None:
    mark(run_dir)
    conf = netconf(run_dir, cniVersion=version, delegate={"type": "bridge"})
    known = SUPPORTED_VERSIONS.index(version) >= SUPPORTED_VERSIONS.index(FIRST_VERSION[command])
    outcome = program(command, conf, env={"CNI_NETNS": netns})
    if known and command == "CHECK":
        assert_silent(outcome)
        return
    error = outcome.error
    dead_agent = 50 if command == "STATUS" else TRY_AGAIN_LATER
    assert (error["code"], error["cniVersion"]) == (dead_agent if known else 1, version)
    assert known or f"asks for {version}, and {command} is from {FIRST_VERSION[command]} on" in error["msg"]


@pytest.mark.parametrize("version", ["9.9.9", "1.1", "1.1.0 ", "\n"])
def test_unknown_version_is_refused_except_by_del(program, run_dir, version: str) -> None:
    for command in ("ADD", "CHECK", "GC", "STATUS"):
        error = program(command, chained(run_dir, {}, cniVersion=version)).error
        assert (error["code"], error["cniVersion"]) == (1, SUPPORTED_VERSIONS[-1])
        assert ", ".join(SUPPORTED_VERSIONS) in error["details"]
    assert_silent(program("DEL", chained(run_dir, {}, cniVersion=version)))


@pytest.mark.parametrize("libcni", [False, True])
def test_configuration_without_a_version_is_of_the_first(program, run_dir, netns, *, libcni: bool) -> None:
    conf = netconf(run_dir)
    del conf["cniVersion"]
    if libcni:
        conf["cniVersion"] = ""
    assert program("ADD", conf, env={"CNI_NETNS": netns}).error["cniVersion"] == "0.1.0"
    assert program("CHECK", conf, env={"CNI_NETNS": netns}).error["code"] == 1


@pytest.mark.parametrize("version", SUPPORTED_VERSIONS)
def test_add_passes_prev_result_on_in_every_version(program, run_dir, netns, version: str) -> None:
    result = {"cniVersion": version, "ip4": {"ip": "10.0.0.2/24"}, "dns": {}}
    outcome = program("ADD", chained(run_dir, {}, cniVersion=version, prevResult=result))
    assert (outcome.exit_status, json.loads(outcome.stdout)) == (0, result)
    alone = netconf(run_dir, cniVersion=version, runtimeConfig={ANNOTATIONS: {}})
    assert_asked(program("ADD", alone, env={"CNI_NETNS": netns}))


@pytest.mark.parametrize(
    ("command", "needed"),
    [
        (command, name)
        for command in ("ADD", "CHECK", "DEL")
        for name in ("CNI_CONTAINERID", "CNI_IFNAME", "CNI_NETNS")
        if (command, name) != ("DEL", "CNI_NETNS")
    ],
)
def test_variable_is_named_when_it_is_missing(program, run_dir, command: str, needed: str) -> None:
    for missing in (None, ""):
        error = program(command, chained(run_dir, {}), env={needed: missing}).error
        assert (error["code"], error["msg"]) == (4, f"{needed}: not set, and {command} needs it")


@pytest.mark.parametrize("netns_path", ["", "/var/run/netns/gone", None])
def test_del_succeeds_when_there_is_no_marker(program, run_dir, netns_path) -> None:
    assert_silent(program("DEL", netconf(run_dir), env={"CNI_NETNS": netns_path}))


def test_del_asks_when_there_is_a_marker(program, run_dir) -> None:
    mark(run_dir)
    assert_asked(program("DEL", netconf(run_dir)))


def test_del_asks_when_the_marker_is_a_dangling_link(program, run_dir) -> None:
    (run_dir / "attachments" / CONTAINER).symlink_to("nowhere")
    assert_asked(program("DEL", netconf(run_dir)))


def lose_markers(run_dir, how: str) -> None:
    (run_dir / "attachments").rmdir()
    if how == "no directory":
        (run_dir / "attachments").touch()


WITHOUT_MARKERS = ["missing", "no directory"]


@pytest.mark.parametrize(
    "conf",
    [{"annotations": WISH}, {"runtimeConfig": {}}, {"annotations": {}, "delegate": {"type": "bridge"}}],
)
def test_del_succeeds_when_the_agent_has_not_run_since_the_boot(program, own_run_dir, conf) -> None:
    shutil.rmtree(own_run_dir)
    assert_silent(program("DEL", chained(own_run_dir, **conf)))


@pytest.mark.parametrize("command", ["DEL", "CHECK"])
@pytest.mark.parametrize("how", WITHOUT_MARKERS)
@pytest.mark.parametrize("annotations", [{"other": "x"}, None, {"rdma_interfaces_required": "[]"}])
def test_ordinary_pod_stops_when_markers_are_missing(program, own_run_dir, command, how, annotations) -> None:
    lose_markers(own_run_dir, how)
    assert_silent(program(command, chained(own_run_dir, annotations)))


@pytest.mark.parametrize("how", WITHOUT_MARKERS)
@pytest.mark.parametrize(
    "conf",
    [{"annotations": WISH}, {"runtimeConfig": {}}, {"annotations": {}, "delegate": {"type": "bridge"}}],
    ids=["asks", "not delivered", "delegate"],
)
def test_shim_asks_when_neither_markers_nor_annotations_tell(program, own_run_dir, how, conf) -> None:
    lose_markers(own_run_dir, how)
    assert_asked(program("DEL", chained(own_run_dir, **conf)))


@pytest.mark.parametrize("denied", ["", "attachments"])
def test_shim_asks_when_the_marker_directory_is_denied(program, run_dir, denied: str) -> None:
    assert_silent(program("DEL", netconf(run_dir), by=OBEYING_FILE_MODES))
    (run_dir / denied).chmod(0)
    outcome = program("DEL", netconf(run_dir), by=OBEYING_FILE_MODES)
    (run_dir / denied).chmod(0o755)
    assert_asked(outcome)


@pytest.mark.parametrize("annotations", NOTHING_OF_OURS)
def test_check_succeeds_without_a_request_and_without_a_marker(program, run_dir, annotations) -> None:
    assert_silent(program("CHECK", chained(run_dir, annotations)))


def test_check_succeeds_with_unknown_annotations_and_without_a_marker(program, run_dir) -> None:
    assert_silent(program("CHECK", netconf(run_dir)))


@pytest.mark.parametrize("annotations", [{}, WISH])
def test_check_succeeds_without_an_agent(program, run_dir, annotations) -> None:
    """CRI-O checks all pods when it starts, and kubelet ends those that fail."""
    mark(run_dir)
    assert_silent(program("CHECK", chained(run_dir, annotations)))


@pytest.mark.parametrize("command", ["ADD", "DEL", "CHECK"])
@pytest.mark.parametrize("container", [".", "..", "../cni.sock", "a/b", "a\nb", "-a", "_a", "é", "a b"])
def test_malformed_container_id_is_refused(program, run_dir, command: str, container: str) -> None:
    outcome = program(command, chained(run_dir, {}), env={"CNI_CONTAINERID": container})
    shown = container.replace("\n", "?")
    assert outcome.error["code"] == 4
    assert outcome.error["msg"].startswith(f"CNI_CONTAINERID is '{shown}'")


def test_container_id_never_reaches_outside_the_marker_directory(program, run_dir) -> None:
    (run_dir / "attachments" / "a").mkdir()
    (run_dir / "outside").touch()
    outcome = program("DEL", netconf(run_dir), env={"CNI_CONTAINERID": "a/../../outside"})
    assert outcome.error["code"] == 4


def test_del_asks_when_the_container_id_is_too_long_for_a_file(program, run_dir) -> None:
    assert_asked(program("DEL", netconf(run_dir), env={"CNI_CONTAINERID": "a" * 256}))


@pytest.mark.parametrize("container", ["a", "A_b.c-9", "0" * 255, "a..b"])
def test_container_id_is_taken_when_the_specification_allows_it(program, run_dir, container: str) -> None:
    (run_dir / "attachments" / container).touch()
    assert_asked(program("DEL", netconf(run_dir), env={"CNI_CONTAINERID": container}))


@pytest.mark.parametrize("command", ["", None, "add", "ADD ", "UPDATE"])
def test_command_is_refused_before_input_is_read_when_unknown(program, command) -> None:
    never_ends, kept_open = os.pipe()
    done = subprocess.run(
        [program.path],
        stdin=never_ends,
        capture_output=True,
        check=False,
        timeout=DEADLINE_S,
        env={"CNI_COMMAND": command} if command is not None else {},
    )
    os.close(never_ends)
    os.close(kept_open)
    assert done.returncode == 1
    assert json.loads(done.stdout)["code"] == 4


@pytest.mark.parametrize(
    ("keys", "field"),
    [
        ({"cniVersion": 1}, "cniVersion"),
        ({"cniVersion": "1" * 63}, "cniVersion"),
        ({"runDir": "run"}, "runDir"),
        ({"runDir": ""}, "runDir"),
        ({"runDir": None}, "runDir"),
        ({"runDir": "/" + "a" * 98}, "runDir"),
        ({"runDir": "/a\0b"}, "runDir"),
        ({"runDir": "/\ud800"}, "runDir"),
        ({"timeoutMs": 0}, "timeoutMs"),
        ({"timeoutMs": -1}, "timeoutMs"),
        ({"timeoutMs": 1.5}, "timeoutMs"),
        ({"timeoutMs": 3_600_001}, "timeoutMs"),
        ({"timeoutMs": 2**64 + 1}, "timeoutMs"),
        ({"timeoutMs": "60"}, "timeoutMs"),
    ],
)
def test_netconf_is_refused_by_field_when_a_value_is_wrong(program, run_dir, keys, field: str) -> None:
    error = program("ADD", chained(run_dir, {}, **keys)).error
    assert error["code"] == 7
    assert field in error["msg"]


def test_run_dir_is_followed_when_it_has_escapes_and_other_letters(program, run_dir) -> None:
    elsewhere = run_dir / 'ü"😀'
    (elsewhere / "attachments").mkdir(parents=True)
    for conf in (netconf(elsewhere), json.dumps(netconf(elsewhere), ensure_ascii=False).encode()):
        assert_silent(program("DEL", conf))
    mark(elsewhere)
    assert str(elsewhere) in program("DEL", netconf(elsewhere)).error["msg"]


def test_input_is_read_when_it_is_as_large_as_allowed(program, run_dir) -> None:
    conf = json.dumps(netconf(run_dir)).encode().ljust(8 << 20)
    assert_silent(program("DEL", conf))
    assert program("DEL", conf + b" ").error["code"] == 6


def test_environment_is_refused_when_larger_than_the_frame_holds(program, run_dir) -> None:
    error = program("DEL", netconf(run_dir), env={"CNI_ARGS": "a" * (64 << 10)}).error
    assert error["code"] == 4
    assert "CNI_ARGS" in error["msg"]


def test_input_is_read_whole_when_it_comes_in_pieces_on_a_pipe_that_does_not_block(program) -> None:
    source, sink = os.pipe()
    os.set_blocking(source, False)
    room = fcntl.fcntl(sink, fcntl.F_SETPIPE_SZ, 4096)
    writable = select.poll()
    writable.register(sink, select.POLLOUT)
    variables = {"CNI_COMMAND": "VERSION"}
    with subprocess.Popen([program.path], stdin=source, stdout=subprocess.PIPE, env=variables) as process:
        os.close(source)
        for piece in (b" " * room,) * 20 + (b'{"cniVersion":', b'"0.4.0"}'):
            os.write(sink, piece)
            assert writable.poll(DEADLINE_S * 1000), "the program reads no further"
        os.close(sink)
        stdout, _ = process.communicate(timeout=DEADLINE_S)
    assert json.loads(stdout)["cniVersion"] == "0.4.0"


def test_output_is_written_whole_when_the_pipe_does_not_block(program) -> None:
    raw = b'{"big":"' + b"x" * 1_000_000 + b'"}'
    conf = b'{"runtimeConfig":{"%s":{}},"prevResult":%s}' % (ANNOTATIONS.encode(), raw)
    source, sink = os.pipe()
    os.set_blocking(sink, False)
    variables = {"CNI_COMMAND": "ADD", "CNI_CONTAINERID": CONTAINER, "CNI_IFNAME": "eth0", "CNI_NETNS": NETNS}
    with subprocess.Popen([program.path], stdin=subprocess.PIPE, stdout=sink, env=variables) as process:
        os.close(sink)
        process.stdin.write(conf)
        process.stdin.close()
        with os.fdopen(source, "rb") as pipe:
            assert pipe.read() == raw
        assert process.wait(DEADLINE_S) == 0


def test_shim_exits_with_failure_not_by_signal_without_a_reader(program) -> None:
    source, sink = os.pipe()
    os.close(source)
    done = subprocess.run(
        [program.path],
        input=b"",
        stdout=sink,
        check=False,
        timeout=DEADLINE_S,
        env={"CNI_COMMAND": "VERSION"},
    )
    os.close(sink)
    assert done.returncode == 1


def test_shim_works_under_the_name_of_the_program_it_replaces(program, build_dir) -> None:
    legacy = Program(build_dir / "rit-k8s-rdma-cni-linux-amd64")
    shutil.copy(program.path, legacy.path)
    assert legacy("VERSION", {"cniVersion": "0.3.1"}) == program("VERSION", {"cniVersion": "0.3.1"})
