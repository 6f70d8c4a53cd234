"""The JSON reader in C against Python's: same documents accepted, same things found in them.

The probe runs under the compiler's address and undefined-behaviour checks, each document in a heap block of
its own size: one byte read beyond it ends the probe. It is not optimised, because GCC 12 from -O1 on drops
some of these checks together with the code that it folds.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni.call import SOURCES
from cni.netconf_oracle import ANNOTATIONS, MALFORMED, MAX_DEPTH, SOMETHING, WRONG, Found, look, parse

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator
    from pathlib import Path

TEXT = st.text(max_size=4) | st.sampled_from(
    ["/x", "[]", "\ud800", '"\\', "/", " [ ] ", "k8s-rdma.io/placement"]
)
KEYS = TEXT | st.sampled_from(
    [
        "cniVersion",
        "runDir",
        "timeoutMs",
        "prevResult",
        "delegate",
        "emptyResult",
        "exclusiveDevices",
        "runtimeConfig",
        ANNOTATIONS,
        "rdma_interfaces_required",
        "k8s-rdma.io/interfaces",
    ]
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-5, 4_000_000)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
)
PAIRS = st.lists(st.tuples(KEYS, SCALARS), max_size=3)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)
ANNOTATION_MAPS = st.none() | TEXT | st.dictionaries(KEYS, TEXT | st.none(), max_size=3)
CONFIGURATIONS = st.fixed_dictionaries(
    {},
    optional={
        "cniVersion": st.text(max_size=4) | st.none(),
        "runDir": st.text(max_size=6).map("/".__add__) | TEXT,
        "timeoutMs": st.integers(-1, 3_600_001) | SCALARS,
        "prevResult": st.dictionaries(KEYS, VALUES, max_size=3) | VALUES,
        "runtimeConfig": st.dictionaries(st.just(ANNOTATIONS) | KEYS, ANNOTATION_MAPS, max_size=2) | VALUES,
        "delegate": VALUES,
        "emptyResult": st.booleans() | VALUES,
        "exclusiveDevices": st.booleans() | VALUES,
        "args": VALUES,
    },
)
BITS = [bytes([byte]) for byte in b'{}[],:"\\u/ \n\t\0\x1f\x7f-+.eE019tfnrl\x80\xc0\xe0\xed\xf0\xf5\xff']
BITS += [
    b"\xed\xa0\x80",
    b"\xf0\x9f\x98\x80",
    b"\xc0\xaf",
    b"\\ud83d\\ude00",
    b"\\udc00",
    b"null",
    b"NaN",
    b"1e5",
]

MALFORMED_DOCUMENTS = [
    b"",
    b" ",
    b"null",
    b"[]",
    b'"{}"',
    b"{",
    b"}",
    b"{}}",
    b"{} {}",
    b"\xef\xbb\xbf{}",
    b"{,}",
    b'{"a"}',
    b'{"a":}',
    b'{"a":1,}',
    b'{"a":1 "b":2}',
    b"{'a':1}",
    b"{a:1}",
    b'{"a":[1,]}',
    b'{"a":[1}',
    b'{"a":01}',
    b'{"a":-}',
    b'{"a":+1}',
    b'{"a":.5}',
    b'{"a":1.}',
    b'{"a":1e}',
    b'{"a":0x1}',
    b'{"a":NaN}',
    b'{"a":-Infinity}',
    b'{"a":tru}',
    b'{"a":True}',
    b'{"a":"\n"}',
    b'{"a":"\x00"}',
    b'{"a":"\\x"}',
    b'{"a":"\\u12g4"}',
    b'{"a":"\\u12"}',
    b'{"a":"',
    b'{"a":"\\',
    b'{"a":"\\"}',
    b'{"a":"\xff"}',
    b'{"a":"\xc0\xaf"}',
    b'{"a":"\xed\xa0\x80"}',
    b'{"a":"\xf4\x90\x80\x80"}',
    b'{"a":"\xe2\x82"}',
    b'{"a":"\xe2\x82',
    b'{"a":"\x9f\xbf"}',
    b'{"a":"\xe0\x9f\xbf"}',
    b'{"a":"\xf0\x8f\xbf\xbf"}',
    b'{"a":1}\0',
    b"{}//",
    b"/**/{}",
]


class Probe:
    """netconf.c, one document after the other."""

    def __init__(self, process: subprocess.Popen) -> None:
        self._process = process

    def __call__(self, data: bytes) -> Found | int:
        self._process.stdin.write(struct.pack("=I", len(data)) + data)
        self._process.stdin.flush()
        kind, *fields = self._process.stdout.readline().decode().split() or ["died"]
        assert kind in ("ok", "error"), f"the probe died on {data!r}"
        values = dict(field.split("=") for field in fields)
        if kind == "error":
            return int(values["code"])
        return Found(
            wish=int(values["wish"]),
            timeout_ms=int(values["timeout"]),
            run_dir=bytes.fromhex(values["run_dir"]),
            delegate=values["delegate"] == "1",
            only_plugin=values["only"] == "1",
            exclusive_devices=values["exclusive"] == "1",
            version=slice_of(data, values.get("version")),
            prev_result=slice_of(data, values.get("prev")),
        )


def slice_of(data: bytes, offsets: str | None) -> Any:
    """The value at these offsets, which must be one value and no more."""
    if offsets is None:
        return None
    start, end = map(int, offsets.split(":"))
    raw = data[start:end]
    assert raw == raw.strip(b" \t\r\n")
    return parse(raw.decode())


@pytest.fixture(scope="session")
def probe(build_dir: Path) -> Iterator[Probe]:
    program = build_dir / "netconf_probe"
    sources = [SOURCES / name for name in ("netconf.c", "json.c", "cni_error.c", "io.c")]
    flags = [
        "-std=c11",
        "-D_GNU_SOURCE",
        "-g",
        "-O0",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
    ]
    here = SOURCES.parent / "tests" / "cni"
    compiler = os.environ.get("CC", "cc")
    subprocess.run(
        [compiler, *flags, "-I", SOURCES, "-o", program, here / "netconf_probe.c", *sources], check=True
    )
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield Probe(process)
        process.stdin.close()
        assert process.wait(60) == 0


def write(value: Any, chance: random.Random) -> str:
    """JSON text of a value in one of the many ways to write it."""
    space = lambda: chance.choice(["", "", " ", "\n", "\t\r "])  # noqa: E731 (used in every line below)
    if isinstance(value, str):
        return '"' + "".join(write_char(char, chance) for char in value) + '"'
    if isinstance(value, dict):
        items = [
            f"{space()}{write(k, chance)}{space()}:{space()}{write(v, chance)}" for k, v in value.items()
        ]
        items += chance.sample(items, min(len(items), chance.choice([0, 0, 0, 1])))
        return "{" + ",".join(items) + space() + "}"
    if isinstance(value, list):
        return "[" + ",".join(space() + write(item, chance) + space() for item in value) + "]"
    return json.dumps(value)


def write_char(char: str, chance: random.Random) -> str:
    code = ord(char)
    must = char in '"\\' or code < 0x20 or 0xD800 <= code <= 0xDFFF
    if code > 0xFFFF or not (must or chance.random() < 0.2):
        return char
    short = {
        '"': '\\"',
        "\\": "\\\\",
        "/": "\\/",
        "\n": "\\n",
        "\t": "\\t",
        "\b": "\\b",
        "\f": "\\f",
        "\r": "\\r",
    }
    style = chance.choice(["u%04x", "u%04X"])
    return short[char] if char in short and chance.random() < 0.5 else "\\" + style % code


def mutate(data: bytes, chance: random.Random) -> bytes:
    """Cut, double, replace or insert something somewhere."""
    start = chance.randint(0, len(data))
    end = min(len(data), start + chance.choice([0, 1, 1, 2, 8]))
    middle = chance.choice(
        [b"", data[start:end] * 2, chance.choice(BITS), chance.choice(BITS) + data[start:end]]
    )
    return data[:start] + middle + data[end:]


@given(configuration=CONFIGURATIONS, chance=st.randoms(use_true_random=False))
def test_reader_finds_the_same_as_python(probe: Probe, configuration: dict, chance: random.Random) -> None:
    data = write(configuration, chance).encode()
    assert look(data) != MALFORMED
    assert probe(data) == look(data)


@given(configuration=CONFIGURATIONS, chance=st.randoms(use_true_random=False), times=st.integers(1, 4))
def test_reader_agrees_with_python_when_a_document_is_damaged(probe, configuration, chance, times) -> None:
    data = write(configuration, chance).encode()
    for _ in range(times):
        data = mutate(data, chance)
        assert probe(data) == look(data)


@given(st.lists(st.sampled_from(BITS), max_size=12).map(b"".join))
def test_reader_agrees_with_python_on_scraps(probe: Probe, scraps: bytes) -> None:
    for data in (scraps, b'{"a":' + scraps, b'{"a":"' + scraps + b'"}', b'{"a":' + scraps + b"}"):
        assert probe(data) == look(data)


@pytest.mark.parametrize("data", MALFORMED_DOCUMENTS)
def test_reader_refuses_malformed_configurations(probe: Probe, data: bytes) -> None:
    assert probe(data) == look(data) == MALFORMED


@pytest.mark.parametrize("data", MALFORMED_DOCUMENTS)
def test_shim_answers_with_a_decoding_failure_when_the_input_is_malformed(program, data: bytes) -> None:
    assert program("ADD", data).error["code"] == MALFORMED


@pytest.mark.parametrize("command", ["DEL", "CHECK", "GC", "STATUS", "VERSION"])
def test_shim_answers_with_a_decoding_failure_to_every_command(program, command: str) -> None:
    error = program(command, b'{"cniVersion":"1.0.0"').error
    assert (error["code"], error["cniVersion"]) == (MALFORMED, "1.1.0")
    assert "from byte 21 on" in error["msg"]


@pytest.mark.parametrize("opening", [b'{"a":', b"["])
def test_reader_refuses_a_document_when_it_nests_too_deep(probe: Probe, opening: bytes) -> None:
    closing = b"}" if opening[:1] == b"{" else b"]"

    def nested(levels: int) -> bytes:
        return b'{"a":' + opening * levels + b"1" + closing * levels + b"}"

    assert isinstance(probe(nested(MAX_DEPTH - 1)), Found)
    assert probe(nested(MAX_DEPTH)) == MALFORMED
    assert probe(nested(2_000_000)) == MALFORMED


def test_reader_takes_the_last_of_equal_keys(probe: Probe) -> None:
    found = probe(b'{"runDir":"/a","prevResult":{"a":1},"runDir":"/b","prevResult":{"b":1}}')
    assert (found.run_dir, found.prev_result) == (b"/b", [("b", parse("1"))])


@pytest.mark.parametrize("run_dir", [rb"/\ud83d\u0041", rb"/\ud83d\ud83d", rb"/\ude00\ud83d", rb"/\ud83dA"])
def test_reader_refuses_a_directory_when_half_a_surrogate_pair_is_in_it(probe: Probe, run_dir: bytes) -> None:
    data = b'{"runDir":"%s"}' % run_dir
    assert probe(data) == look(data) == WRONG


def test_reader_finds_a_request_when_its_list_is_not_empty_after_a_megabyte(probe: Probe) -> None:
    annotations = {"rdma_interfaces_required": "[" + " " * 1_000_000 + "{}]"}
    found = probe(json.dumps({"runtimeConfig": {ANNOTATIONS: annotations}}).encode())
    assert found.wish == SOMETHING
