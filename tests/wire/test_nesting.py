"""The bound on the levels of JSON is the same under each interpreter, and at each place that reads JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from k8s_rdma.config.devices import load_mellanox_config
from k8s_rdma.config.manifests import documents
from k8s_rdma.errors import MalformedError
from k8s_rdma.kube.exec_plugins import PluginCall, plugin_credential
from k8s_rdma.webhook.injection import decode_review
from k8s_rdma.wire.annotation_values import tokens
from k8s_rdma.wire.cached_attachment import decode_cached
from k8s_rdma.wire.claim_status import decode_state
from k8s_rdma.wire.cni_request import decode_netconf
from k8s_rdma.wire.conflist import decode_conf, names_ours
from k8s_rdma.wire.go_yaml import read_go_yaml
from k8s_rdma.wire.ipam_result import decode_ipam_result
from k8s_rdma.wire.json import decode, decode_large, decode_lossy
from k8s_rdma.wire.nesting import MAX_LEVELS, TOO_DEEP, NestingError, load, pruned, require_shallow
from k8s_rdma.wire.placement_annotation import decode_promise
from k8s_rdma.wire.rates_status import decode_rates_status

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ANYTHING = msgspec.json.Decoder(Any)


def arrays(levels: int, within: str = "1") -> str:
    return "[" * levels + within + "]" * levels


def objects(levels: int, within: str = "1") -> str:
    return '{"a":' * levels + within + "}" * levels


def mixed(levels: int, within: str = "1") -> str:
    return objects(levels // 2, arrays(levels - levels // 2, within))


nestings = pytest.mark.parametrize("nested", [arrays, objects, mixed])


@nestings
@pytest.mark.parametrize("levels", [0, 1, 63, 64])
def test_document_within_the_bound_is_read(nested: Callable[[int], str], levels: int) -> None:
    text = nested(levels)
    assert load(text) == load(text.encode()) == decode(text, ANYTHING, "it") == json.loads(text)


@nestings
@pytest.mark.parametrize("levels", [65, 1_500, 100_000])
def test_document_beyond_the_bound_is_refused(nested: Callable[[int], str], levels: int) -> None:
    for text in (nested(levels), nested(levels).encode()):
        with pytest.raises(NestingError, match=r"^nested deeper than 64 levels$"):
            load(text)
        with pytest.raises(MalformedError, match=r"^it: nested deeper than 64 levels$"):
            decode(text, ANYTHING, "it")


def test_document_that_is_too_large_to_be_read_twice_is_refused_at_the_interpreters_bound() -> None:
    assert decode_large(arrays(65), ANYTHING, "it") == json.loads(arrays(65))
    with pytest.raises(MalformedError, match=r"^it: nested deeper than 64 levels$"):
        decode_large(arrays(2_000_000), ANYTHING, "it")


@pytest.mark.parametrize(
    "within",
    [
        json.dumps("[" * 100 + "{" * 100),
        json.dumps("]" * 100 + "}" * 100),
        json.dumps('"[' * 100),
        json.dumps('\\"[{' * 100),
        json.dumps("\\" * 7 + "[" * 100),
        json.dumps({'[{"' * 100: "]" * 100}),
        r'["\\", "[", "\\\\\"[[", "\u005b\u0022"]',
        '"[\ud800\u2028"',
    ],
)
def test_brackets_within_texts_are_no_levels(within: str) -> None:
    require_shallow(arrays(MAX_LEVELS - 1, within))
    with pytest.raises(NestingError):
        require_shallow(arrays(MAX_LEVELS + 1, within))


def test_documents_beside_each_other_are_no_levels() -> None:
    wide = f"[{','.join([objects(63)] * 100)}]"
    assert load(wide) == json.loads(wide)


@pytest.mark.parametrize(
    "text", ["[" * 65, '{"' * 65, "]" * 65 + "[" * 65, '"' + "[" * 65, "[}" * 65, "\\" * 65]
)
def test_text_that_is_no_json_is_refused_in_one_way_or_the_other(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - NestingError and JSONDecodeError are both
        load(text)
    with pytest.raises(MalformedError):
        decode(text, ANYTHING, "it")


@pytest.mark.parametrize("nested", [arrays, objects])
def test_pruned_document_is_as_it_was_above_and_still_beyond_the_bound(nested: Callable[..., str]) -> None:
    text = nested(100_000)
    above = pruned(text)
    assert msgspec.json.decode(above) == json.loads(nested(2 * MAX_LEVELS - 1, "null"))
    assert decode_lossy(text.encode()) == json.loads(above)
    with pytest.raises(NestingError):
        require_shallow(above)
    assert pruned(nested(100)) == nested(100)


def below(key: str, **fields: object) -> Callable[[int], str]:
    """A document with a value of so many levels less one, at that key."""
    text = json.dumps({**fields, key: "VALUE"})
    return lambda levels: text.replace('"VALUE"', arrays(levels - 1))


def netconf(levels: int) -> str:
    section = {"cniVersion": "1.0.0", "name": "net", "type": "k8s-rdma-cni", "prevResult": {"of": "VALUE"}}
    return json.dumps(section).replace('"VALUE"', arrays(levels - 2))


def claim(levels: int) -> str:
    document = {"metadata": {"namespace": "default", "name": "c", "uid": "u"}, "spec": {}, "status": "VALUE"}
    return json.dumps(document).replace('"VALUE"', arrays(levels - 1))


def mellanox(text: str, directory: Path) -> None:
    path = directory / "config.json"
    path.write_text(text)
    load_mellanox_config(str(path), {}, cdi=False)


def exec_plugin(text: str, directory: Path) -> None:
    path = directory / "answer.json"
    path.write_text(text)
    plugin_credential(PluginCall(command=("cat", str(path)), environment={}))


READERS: dict[str, tuple[Callable[[int], str], Callable[[str, Path], object]]] = {
    "annotation": (lambda levels: "[" * levels, lambda text, _: tokens(text)),
    "placement": (below("x"), lambda text, _: decode_promise(text, keys=None)),
    "rates": (below("x"), lambda text, _: decode_rates_status(text)),
    "claim": (claim, lambda text, _: decode_state(text.encode())),
    "network configuration": (netconf, lambda text, _: decode_netconf(text.encode())),
    "conflist": (
        below("x", name="n", plugins=[{"type": "bridge"}]),
        lambda text, _: decode_conf("10-a.conflist", text.encode()),
    ),
    "cached attachment": (below("x"), lambda text, _: decode_cached(text.encode())),
    "IPAM result": (below("x", cniVersion="1.0.0"), lambda text, _: decode_ipam_result(text.encode())),
    "admission review": (below("x"), lambda text, _: decode_review(text.encode())),
    "device plugin's file": (below("configList"), mellanox),
    "kubeconfig": (below("x"), lambda text, _: read_go_yaml(text.encode())),
    "manifest": (below("kind"), lambda text, _: list(documents(text))),
    "exec plugin": (below("status"), exec_plugin),
}


def refusal(read: Callable[[str, Path], object], text: str, tmp_path: Path) -> str:
    """Return the message that a reader refuses a text with; empty if it reads it."""
    try:
        read(text, tmp_path)
    except Exception as error:
        return str(error)
    return ""


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("levels", [63, 64, 65, 100_000])
def test_each_reader_has_the_bound(reader: str, levels: int, tmp_path: Path) -> None:
    write, read = READERS[reader]
    assert (TOO_DEEP in refusal(read, write(levels), tmp_path)) == (levels > MAX_LEVELS)


@pytest.mark.parametrize(("levels", "found"), [(64, True), (65, False)])
def test_our_plugin_is_found_within_the_bound(levels: int, found: bool) -> None:
    assert names_ours(arrays(levels - 1, '{"type": "k8s-rdma-cni"}').encode()) == found
