"""The keys of an interface in the admission policies: variables of CEL that are made of `core.options`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from k8s_rdma.core.options import OPTIONS, Choices, Syntax, Values, Whole, claim_parameter, keys_with
from k8s_rdma.core.request import MAX_INTERFACES
from k8s_rdma.core.types import Enforce, LinkType
from k8s_rdma.wire.annotation import KEYS
from k8s_rdma.wire.resource_claim import CONFIG_KEYS, HEAD_KEYS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from k8s_rdma.core.options import KeyRow

POLICIES = Path(__file__).resolve().parents[1] / "policies"
_WIDTH = 116

_NUMBERS = {
    **{key: row.values for key, row in OPTIONS.items() if isinstance(row.values, Whole)},
    "count": Whole(1, MAX_INTERFACES, "a number of interfaces"),
    **{key: Whole(0, 0xFFFF, "a partition key") for key in keys_with(lambda row: row.values is Syntax.PKEY)},
}
_WORDS = {
    "enforce": Choices({choice.value: choice for choice in Enforce}),
    **{key: row.values for key, row in OPTIONS.items() if isinstance(row.values, Choices)},
}
_STRINGS = {
    Syntax.INTERFACE_NAME: "a network interface's name",
    Syntax.NETWORK_NAME: "a network's name",
    Syntax.MAC: "a MAC such as 02:00:00:00:00:01",
    Syntax.GUID: "a GUID such as 02:00:00:ff:fe:00:00:01",
}

_PARAMETERS = {
    Syntax.FLAG: ("!(p.KEY in [dyn(true), dyn(false), dyn('on'), dyn('off')])", "wanted true or false"),
    Syntax.MAC: (
        (
            "!(type(p.KEY) == string && !p.KEY.matches('^[0:-]*$')\n"
            "    && p.KEY.matches('^[0-9a-fA-F][02468aceACE]([:-][0-9a-fA-F]{2}){5}$'))"
        ),
        "wanted a MAC of one interface, such as 02:00:00:00:00:01",
    ),
    Syntax.GUID: (
        (
            "!(type(p.KEY) == string && p.KEY.matches('^[0-9a-fA-F]{2}([:-][0-9a-fA-F]{2}){7}$')\n"
            "    && !p.KEY.matches('^([0:-]*|[fF:-]*)$'))"
        ),
        "wanted a GUID, such as 02:00:00:ff:fe:00:00:01",
    ),
    Syntax.PKEY: (
        (
            "!(type(p.KEY) == string\n"
            "    ? p.KEY.matches('^0[xX][0-9a-fA-F]{1,4}$') && !p.KEY.matches('^0[xX](0{1,4}|8000)$')\n"
            "    : type(p.KEY) == int && p.KEY >= 1 && p.KEY <= 65535 && p.KEY != 32768)"
        ),
        'wanted a partition key, such as "0x8001"',
    ),
    Syntax.INTERFACE_NAME: (
        (
            "!(type(p.KEY) == string && p.KEY.matches('^[!-$&-.0-9;-~]{1,15}$')\n"
            "    && !(p.KEY in ['.', '..', 'lo', 'all', 'default']))"
        ),
        "wanted the name of a network interface, such as rdma0",
    ),
    Syntax.NETWORK_NAME: (
        "!(type(p.KEY) == string\n    && p.KEY.matches('^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,252}$'))",
        "wanted the name of a network of the CNI configuration",
    ),
}
"""An expression that is true for a wrong parameter, and the sentence about it."""


def annotation_variables() -> str:
    """Return the variables of `annotation.yaml`."""
    variables = {
        "known": _list(KEYS),
        "least": _map({key: str(values.smallest) for key, values in _NUMBERS.items()}),
        "most": _map({key: str(values.largest) for key, values in _NUMBERS.items()}),
        "numbers": _map({key: _text(values.subject) for key, values in _NUMBERS.items()}),
        "words": _map({key: _plain(values.by_word) for key, values in _WORDS.items()}),
        "inAnyCase": _list(key for key, values in _WORDS.items() if values.any_case),
        "flags": _list(keys_with(lambda row: row.values is Syntax.FLAG)),
        "strings": _map(
            {
                key: _text(_STRINGS[row.values])
                for key, row in OPTIONS.items()
                if isinstance(row.values, Syntax) and row.values in _STRINGS
            }
        ),
        "ofEthernet": _list(keys_with(lambda row: row.link_type is LinkType.ETHERNET)),
        "ofInfiniband": _list(keys_with(lambda row: row.link_type is LinkType.INFINIBAND)),
        "ofNetdevs": _list(keys_with(lambda row: row.of_netdev)),
        "ofOne": _list(keys_with(lambda row: row.unique)),
    }
    return "".join(_variable(name, expression) for name, expression in variables.items())


def claim_variables() -> str:
    """Return the variables of `claims.yaml`."""
    variables = {
        "knownParameters": (*HEAD_KEYS, *CONFIG_KEYS),
        "parametersOfEthernet": _parameters_with(lambda row: row.link_type is LinkType.ETHERNET),
        "parametersOfInfiniband": _parameters_with(lambda row: row.link_type is LinkType.INFINIBAND),
        "parametersOfNetdevs": _parameters_with(lambda row: row.of_netdev),
    }
    lists = "".join(_variable(name, _list(keys)) for name, keys in variables.items())
    return lists + _variable("valueFaults", _value_faults())


def _parameters_with(condition: Callable[[KeyRow], bool]) -> Iterable[str]:
    return map(claim_parameter, keys_with(lambda row: row.in_claims and condition(row)))


def _value_faults() -> str:
    lines = "\n: ".join(
        f"has(p.{parameter}) && {wrong.replace('KEY', parameter)}\n  ? {_text(f'{parameter}: {sentence}')}"
        for parameter, key in CONFIG_KEYS.items()
        for wrong, sentence in [_parameter(OPTIONS[key].values)]
    )
    body = f"{lines}\n: '').filter(fault, fault != '')".replace("\n", "\n    ")
    return f"variables.configs.map(c, c.opaque.parameters).map(p,\n    {body}"


def _parameter(values: Values) -> tuple[str, str]:
    match values:
        case Whole(smallest, largest, _, unit):
            wrong = f"!(type(p.KEY) == int && p.KEY >= {smallest} && p.KEY <= {largest})"
            return wrong, f"wanted {unit} from {smallest} to {largest}"
        case Choices(by_word, any_case):
            known = f"known are {', '.join(by_word)}"
            if any_case:
                lower = _plain(word.lower() for word in by_word)
                return f"!(type(p.KEY) == string && p.KEY.lowerAscii() in {lower})", known
            return f"!(p.KEY in {_plain(by_word)})", known
    return _PARAMETERS[values]


def _variable(name: str, expression: str) -> str:
    lines = "".join(f"        {line}\n" for line in expression.splitlines())
    return f"    - name: {name}\n      expression: |-\n{lines}"


def _text(value: str) -> str:
    return f'"{value}"' if "'" in value else f"'{value}'"


def _plain(values: Iterable[str]) -> str:
    return f"[{', '.join(map(_text, values))}]"


def _list(values: Iterable[str]) -> str:
    return "\n ".join(_wrapped(f"[{', '.join(map(_text, values))}]"))


def _map(values: Mapping[str, str]) -> str:
    entries = ", ".join(f"{_text(key)}: {value}" for key, value in values.items())
    return "\n ".join(_wrapped(f"{{{entries}}}"))


def _wrapped(text: str) -> Iterator[str]:
    """Break a line after a comma; commas within brackets may end a line as well."""
    line = ""
    for part in re.split(r"(?<=,) ", text):
        if line and len(line) + len(part) > _WIDTH - 10:
            yield line
            line = part
        else:
            line = f"{line} {part}" if line else part
    yield line


MADE = {"annotation": annotation_variables, "claims": claim_variables}
"""The policies that have variables between the marks, by the name of their file."""

_MARKED = re.compile(r"(    # made: keys[^\n]*\n).*(    # /made: keys\n)", re.DOTALL)


def written(name: str) -> str:
    """Return the text of a policy's file with the variables of now."""
    text = (POLICIES / f"{name}.yaml").read_text()
    return _MARKED.sub(lambda marks: f"{marks[1]}{MADE[name]()}{marks[2]}", text)


def write_policies() -> None:
    """Write the variables of now into the policies' files."""
    for name in MADE:
        (POLICIES / f"{name}.yaml").write_text(written(name))
