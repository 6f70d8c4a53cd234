"""Keys and shapes of values that a report may show of files and logs; all others are left out.

A list of secrets is never complete, because a secret has no typical form: for example `auth`, `psk`, a
password in a URL or a cookie. A value is therefore written only if its key is one of our configurations', of
CNI's or of our logs. A word without a key is written if it is a plain word, a number, a path, an address or a
name of Kubernetes. The rest is left out, beside its key. All of it takes time in proportion to the length of
the text.
"""

from __future__ import annotations

import json
import re
from functools import cache
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from k8s_rdma.config.processes import CONFIGURATIONS
from k8s_rdma.wire.nesting import load

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

OMITTED = "(left out)"

_OF_CNI = """
    accept_duplicate bandwidth binDir bridge bytesPerTick capabilities chained cniVersion cniVersions confDir
    default_networks delegate delegates device deviceID disableCheck disableDefaultNetworking disableGC dns
    dst exclude externalSetMarkChain forceAddress gateway gw hairpinMode hostPort containerPort if0name ipMasq
    ipam ipv4 ipv6 isDefaultGateway isGateway link_state linkInContainer log_level logLevel loglevel
    logToStderr mac macspoofchk master max_tx_rate maxTxRate mcastSnooping min_tx_rate minTxRate mode mtu name
    nameservers network network_name nodename ordinal plugins policy portMappings promiscMode qos range
    rangeEnd rangeStart range_end range_start ranges rate_limit readinessindicatorfile routes rttRate snat
    spoofchk spoof_check subnet systemNamespaces trust type uplinkInterface vlan vlanProto vlanQoS vlanTrunk
    volumes mask minID maxID id
"""
_OF_LOGS = """
    action address addresses agent allocation annotation attachment attempt backoff_s bytes cause cgroup
    claim code command component container count device devices driver duration_ms duration_s elapsed
    err error event exc_info exception exit_status field file files from generation group host id if_name
    ifname index interface interfaces kernel kind level limit line link logger mac max mbps message method
    min mode msg namespace netns network node nodes number object op operation outcome path pci pf pfs phase
    pid plugin pod pods port problem problems process rdma_device reason refused request requests resource
    retry_s sandbox seconds severity signal size socket source started state status step steps subject
    timeout_s timestamp to total ts type uid unreadable url user_agent verb version vf vfs waited_s warning
    what when why worker time desc rpc failed found note hint details expected got wanted
"""

_SECRET = re.compile(
    r"(?i)pass|pwd|psk|bearer|basic|secret|token|credential|auth|cookie|session|private|apikey|api-key|(?<!k)key(-?data)?$|data$"
)
_PLACE = re.compile(r"(?i)(file|dir|path|directory)$")
_KEY = re.compile(r"[A-Za-z_][A-Za-z_.-]{0,63}")
_PATH = re.compile(r"/[\w./-]{0,254}")
_VALUE = re.compile(r"[A-Za-z0-9_.:/*-]{0,128}")
_LONG_RUN = re.compile(r"[A-Za-z0-9+_]{33}")
"""A part of keys and hashes that no name has."""

_WORD = re.compile(
    r"""(?x)
    [A-Za-z]?[a-z]{0,23}(?:[A-Z][a-z]{1,23}){0,6} | [A-Z]{1,16} | [a-z]+'[a-z]{1,2}  # plain, CamelCase
    | [+-]?[0-9]{1,20}(?:\.[0-9]{1,9})?(?:[a-zA-Zµ]{1,4}(?:/s)?|%)?                  # numbers, with units
    | [0-9]{4}-[0-9]{2}-[0-9]{2}(?:T[0-9:.]{5,18}(?:Z|[+-][0-9:]{4,6})?)?             # times
    | [0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?
    | (?:[0-9]{1,3}\.){3}[0-9]{1,3}(?:[:/][0-9]{1,5})?                                # addresses
    | (?:[0-9a-fA-F]{0,4}:){2,7}[0-9a-fA-F]{0,4}(?:/[0-9]{1,3})?
    | (?:[0-9a-fA-F]{2}:){5,7}[0-9a-fA-F]{2}
    | [0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]
    | [0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}
    | [IWEF][0-9]{4} | [a-z_]{1,40}\.(?:go|c|py):[0-9]{1,6} | [KMGT]b/s               # of logs
    | (?:eth|en[ops]|ib|mlx|net|rdma|veth|cali|lxc|cni|bond|br|vf|pf|uverbs|umad|issm)[a-z0-9_]{0,15}
    | [a-z][a-z0-9]{0,15}(?:[-_.][a-z0-9]{1,20}){1,6}                                 # names of Kubernetes
    | [a-z][a-z0-9.-]{0,62}/[a-z0-9][a-z0-9.-]{0,100}
    """
)
_TOKEN = re.compile(r"""\s+|"(?:[^"\\]|\\.)*+(?:"|\\?$)|'[^']*+(?:'|$)|[^\s"',;()\[\]{}<>|=]+|.""", re.DOTALL)
_BEGIN, _END = "-----BEGIN", "-----END"
_MAX_LINE = 16_384
_BEGINNINGS = "\"'-_/+:"
"""The signs, besides letters and digits, that a word may begin with."""
_OPTION = "\0"
"""The separator of an option and its value, which are words."""


@cache
def _known_keys() -> frozenset[str]:
    keys = {*_OF_CNI.split(), *_OF_LOGS.split(), *_fields(CONFIGURATIONS.values())}
    return frozenset(key for key in keys if not _SECRET.search(key) or _PLACE.search(key))


def _fields(kinds: Iterable[Any]) -> Iterator[str]:
    """Yield the keys of models, and of all models within them."""
    waiting, found = list(kinds), set()
    while waiting:
        kind = waiting.pop()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            if kind in found:
                continue
            found.add(kind)
            for field in msgspec.structs.fields(kind):
                yield field.encode_name
                waiting.append(field.type)
            if kind.__struct_config__.tag_field:
                yield kind.__struct_config__.tag_field
        else:
            waiting.extend(get_args(kind))


def is_known(key: str) -> bool:
    """Report whether the value of a key may be written, if it is of a known shape."""
    return key in _known_keys()


def redacted(document: Any) -> Any:
    """Return a document of any depth, without the values of unknown keys."""
    match document:
        case dict():
            return {_shown_key(str(key)): _of_key(str(key), item) for key, item in document.items()}
        case list():
            return [redacted(item) for item in document]
        case str():
            return document if _is_plain(document) else redacted_text(document)
        case bool() | int() | float() | None:
            return document
        case _:
            return OMITTED


def _shown_key(key: str) -> str:
    return key if is_known(key) or _KEY.fullmatch(key) else OMITTED


def _of_key(key: str, item: Any) -> Any:
    if is_known(key):
        return redacted(item)
    if _PLACE.search(key) and isinstance(item, str) and _is_plain(item) and _PATH.fullmatch(item):
        return item
    return OMITTED


def _is_plain(text: str) -> bool:
    return bool(_VALUE.fullmatch(text)) and "://" not in text and not _LONG_RUN.search(text)


def redacted_text(text: str) -> str:
    """Return a log, or any text: words, numbers, paths and names, and values beside known keys."""
    lines, within_pem = [], False
    for line in text.split("\n"):
        begin = line.find(_BEGIN)
        if within_pem or begin >= 0:
            if not within_pem:
                lines.append(f"{_line(line[:begin])}{OMITTED}")
            within_pem = _END not in line
        else:
            lines.append(_line(line))
    return "\n".join(lines)


def _line(line: str) -> str:
    if len(line) > _MAX_LINE:
        return OMITTED
    if line.startswith("{"):
        try:
            document = load(line)
        except ValueError:
            document = None
        if isinstance(document, dict):
            return json.dumps(redacted(document))
    return "".join(_collapsed(_Line(line).pieces()))


def _collapsed(pieces: Iterator[str]) -> Iterator[str]:
    """Write one mark for consecutive parts that are left out."""
    previous, space = "", ""
    for word in pieces:
        if word.isspace():
            space = word
        elif word == OMITTED == previous:
            space = ""
        else:
            yield space + word
            previous, space = word, ""
    yield space


class _Line:
    """Reads a line word by word. A key is a word before `=` or `:`, also in quotes, or an option."""

    def __init__(self, line: str) -> None:
        self._tokens = [found[0] for found in _TOKEN.finditer(line)]
        self._place = 0

    def pieces(self) -> Iterator[str]:
        """Yield the words that may be written, and OMITTED for the others."""
        while self._place < len(self._tokens):
            is_first = self._place == 0
            token = self._take()
            if token.isspace() or not (token[0].isalnum() or token[0] in _BEGINNINGS):
                yield token
                continue
            name, separator = self._key(token)
            if separator or _SECRET.search(name):
                yield self._shown(name, token) + separator.strip(_OPTION)
                if not is_known(name):
                    yield from self._omitted_value(name, to_the_end=is_first and ":" in separator)
            else:
                yield self._word(token)

    def _take(self) -> str:
        self._place += 1
        return self._tokens[self._place - 1]

    def _key(self, token: str) -> tuple[str, str]:
        """Return the name that a token is of, and the separator before its value, if there is one."""
        name = token.strip("\"'")
        following = "".join(self._tokens[self._place : self._place + 2]).lstrip()
        if following.startswith("=") or (token[0] in "\"'" and following.startswith(":")):
            return name.lstrip("-"), self._separator(following[0])
        if token[0] in "\"'":
            return "", ""
        if token[0] == "-" and token.strip("-"):
            return name.strip("-:"), "" if is_known(name.strip("-:")) else _OPTION
        head, colon, remainder = token.partition(":")
        if not colon or not _KEY.fullmatch(head) or _WORD.fullmatch(token) or remainder.startswith("//"):
            return ("" if _PATH.fullmatch(token) else name), ""
        if remainder:  # key:value in one word
            self._tokens.insert(self._place, remainder)
        return head, colon

    def _separator(self, mark: str) -> str:
        """Take the separator between a key and its value."""
        separator = ""
        while mark not in separator:
            separator += self._take()
        leading, _, following = separator.partition(mark)
        if following:
            self._tokens.insert(self._place, following)
        return leading + mark

    @staticmethod
    def _shown(name: str, token: str) -> str:
        if not (is_known(name) or _KEY.fullmatch(name)):
            return OMITTED
        whole = token.removesuffix(":")
        return whole if whole.strip("\"'-") == name else name

    def _omitted_value(self, key: str, *, to_the_end: bool) -> Iterator[str]:
        """Yield OMITTED for the value of a key, or a path if the key names one.

        to_the_end: whether the value extends to the end, because the line is a key and its value. The value
            of a secret's name extends as far.
        """
        while self._place < len(self._tokens) and self._tokens[self._place].isspace():
            yield self._take()
        if self._place == len(self._tokens):
            return
        token = self._take()
        if _PLACE.search(key) and _PATH.fullmatch(token.strip("\"'")):
            yield token
            return
        yield OMITTED
        if not (to_the_end or _SECRET.search(key)):
            return
        ends = "" if key.lower().endswith("cookie") else ",;}"
        while self._place < len(self._tokens):
            token = self._take()
            if token in ends and token:
                yield token
                return

    @staticmethod
    def _word(token: str) -> str:
        if token[0] in "\"'":
            inner = token[1:].removesuffix(token[0]).replace('\\"', "'")
            return f"{token[0]}{''.join(_collapsed(_Line(inner).pieces()))}{token[0]}"
        bare = token.rstrip(".:!?")
        if not bare or _WORD.fullmatch(bare) or (_PATH.fullmatch(bare) and not _LONG_RUN.search(bare)):
            return token
        return OMITTED + token[len(bare) :]
