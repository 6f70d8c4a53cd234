"""Every mistake that a configuration file can have is reported in the file's words: over all models."""

from __future__ import annotations

import datetime
from types import NoneType
from typing import TYPE_CHECKING, Any, get_args

import msgspec
import pytest
from msgspec import inspect

from k8s_rdma.config.agent import AgentConfig
from k8s_rdma.config.devices import DevicePluginConfig, MellanoxConfig, SharedSelector
from k8s_rdma.config.extender import ExtenderConfig
from k8s_rdma.config.faults import MAX_FAULTS, faults, fit
from k8s_rdma.config.files import load_config
from k8s_rdma.config.init import InitConfig
from k8s_rdma.config.server import ServerConfig
from k8s_rdma.errors import MalformedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Struct = type[msgspec.Struct]
    Put = Callable[[dict[str, Any]], dict[str, Any]]

FILES: tuple[Struct, ...] = (
    *(AgentConfig, InitConfig, ServerConfig, ExtenderConfig),
    *(DevicePluginConfig, MellanoxConfig),
)
FITTING: tuple[object, ...] = ("/a", "a", "15b3", "0000:03:00.0", "a.b/c", 1, 10)
PROBES: tuple[object, ...] = (
    *(None, -1, 10**9, "", "No Such ? Thing", datetime.date(2026, 1, 2)),
    *(["No Such ? Thing"], [7], {"zzz": 1}),
)
FOREIGN = ("`", "$", "Expected", "Object", "regex", "Invalid", "StrType")
"""Parts of msgspec's sentences that ours do not have."""


def of_kind(field_type: object) -> Iterator[tuple[Struct, bool]]:
    """The models below a field, and whether in a list."""
    for each in get_args(field_type) or (field_type,):
        if isinstance(each, type) and issubclass(each, msgspec.Struct):
            yield each, False
        elif each not in {NoneType, ...} and get_args(each):
            yield from of_kind(each)


def models(struct: Struct, at: str = "", put: Put = lambda document: document) -> Iterator[Any]:
    """Every model of a file: it, its place, and how a document of it gets into the file's."""
    yield struct, at, put
    for field in msgspec.structs.fields(struct):
        many = "tuple" in str(field.type)
        for below, _ in of_kind(field.type):
            name = f"{at}.{field.encode_name}".lstrip(".") + ("[0]" if many else "")

            def inside(document: dict[str, Any], key: str = field.encode_name, many: bool = many) -> Any:
                return put({**least(struct), key: [document] if many else document})

            yield from models(below, name, inside)


def least(struct: Struct) -> dict[str, Any]:
    """A document with the required fields, and no more."""
    config = struct.__struct_config__
    tag = {config.tag_field: config.tag} if config.tag_field else {}
    fields = (field for field in msgspec.structs.fields(struct) if field.required)
    return tag | {field.encode_name: fitting(field.type) for field in fields}


def fitting(kind: Any) -> object:
    return next(each for each in FITTING if not faults(kind, each))


CASES = [
    pytest.param(file, struct, at, put, id=f"{file.__name__}:{at}:{struct.__name__}")
    for struct, (file, at, put) in {
        struct: (file, at, put) for file in FILES for struct, at, put in models(file)
    }.items()
]
"""Each model in one of the files that have it."""


def told(file: Struct, document: object) -> str | None:
    """The refusal, if it is refused."""
    try:
        fit(file, document)
    except MalformedError as error:
        return error.message
    return None


@pytest.mark.parametrize(("file", "struct", "at", "put"), CASES)
def test_value_of_a_wrong_type_is_reported_with_its_place_and_the_right_type(
    file: Struct, struct: Struct, at: str, put: Put
) -> None:
    refused = 0
    for field in msgspec.structs.fields(struct):
        for probe in PROBES:
            said = told(file, put({**least(struct), field.encode_name: probe}))
            if said is None:
                continue
            refused += 1
            assert not any(word in said for word in FOREIGN), said
            assert "\n" not in said
            if not faults(field.type, probe):  # a model's own sentence, of fields together
                continue
            place = f"{at}.{field.encode_name}".lstrip(".")
            assert said.startswith(place), (place, said)
            assert any(words in said for words in ("; wanted ", "unknown key", ": is empty, so"))
    assert refused >= len(msgspec.structs.fields(struct))


@pytest.mark.parametrize(("file", "struct", "at", "put"), CASES)
def test_missing_or_misspelt_key_is_reported_with_its_place(
    file: Struct, struct: Struct, at: str, put: Put
) -> None:
    for field in msgspec.structs.fields(struct):
        name = field.encode_name
        place = f"{at}.{name}".lstrip(".")
        if field.required:
            without = {key: value for key, value in least(struct).items() if key != name}
            assert (told(file, put(without)) or "").startswith(f"{place}: not set; wanted ")
        if struct.__struct_config__.forbid_unknown_fields:
            said = told(file, put({**least(struct), f"{name}x": 1}))
            assert said == f"{place}x: unknown key; did you mean {name}?"


@pytest.mark.parametrize("file", FILES)
def test_pattern_and_length_are_always_reported_in_words(file: Struct) -> None:
    for struct, _, _ in models(file):
        for info in leaves(inspect.type_info(struct)):
            assert getattr(info, "pattern", None) is None, struct


def leaves(info: inspect.Type) -> Iterator[inspect.Type]:
    """The types of a model's fields that have no description."""
    match info:
        case inspect.StructType():
            for field in info.fields:
                yield from leaves(field.type)
        case inspect.UnionType():
            for each in info.types:
                yield from leaves(each)
        case inspect.VarTupleType():
            yield from leaves(info.item_type)
        case inspect.Metadata() if "description" not in (info.extra_json_schema or {}):
            yield info.type
        case inspect.Metadata():
            return
        case _:
            yield info


def test_faults_are_reported_up_to_a_limit_and_the_known_keys_once() -> None:
    told = faults(AgentConfig, {"node": "w1"} | {f"x{i}": 1 for i in range(MAX_FAULTS + 3)})
    assert len(told) == MAX_FAULTS
    assert told[0].why.startswith("unknown key; known are node, kernel, ")
    assert {each.why for each in told[1:]} == {"unknown key"}


def test_item_is_reported_with_its_place_in_the_list_of_a_file_or_another_model() -> None:
    for sort in (list, tuple):
        [fault] = faults(SharedSelector, {"ifNames": sort(["eth0", "ens*"])})
        assert str(fault).startswith("ifNames[1]: ens*; wanted the whole name of a network device")
        [fault] = faults(SharedSelector, {"functions": sort(["vf"])})
        assert str(fault).startswith("functions: is a list; wanted ")


def test_option_with_a_newline_is_refused_as_the_same_in_a_file(tmp_path: Path) -> None:
    with pytest.raises(MalformedError, match=r"^command line: node: 'w1\\n'; wanted the node's name"):
        load_config(AgentConfig, None, {"node": "w1\n"})
    with pytest.raises(MalformedError, match=r"^nodeLeaseNamespace: 'a\\n'; wanted text, without"):
        fit(ExtenderConfig, {"nodeLeaseNamespace": "a\n"})
