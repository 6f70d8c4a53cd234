"""Annotations of pods, well and badly formed: policies and the extender have to agree upon them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from k8s_rdma.core.options import OPTIONS, Choices, Syntax, Values, Whole
from k8s_rdma.wire.annotation import KEYS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

VALUES: dict[str, tuple[list[Any], list[Any]]] = {
    "min_tx_rate": ([0, 1, 600], [-1, 1.0, 1e3, "1", None, True, 2**32, 10**30, [], {}]),
    "max_tx_rate": ([0, 1000, 4294967295], [-5, 1.5, "1000", 4294967296, False, [1]]),
    "enforce": (["auto", "hardware", "software"], ["hard", "", "Auto", 1, None, ["auto"], "x" * 70]),
    "count": ([1, 3, 1024], [0, -1, 1025, 1.5, "2", 99999999]),
    "name": (
        ["data0", "a" * 15, "x-y_z.1"],
        ["", "a" * 16, "..", "a/b", "a b", "a:b", "50%", "lo", "default", 5, None],
    ),
    "network": (["storage", "a.b-c_d", "Storage", "aB", "n" * 253], ["", "-a", "a b", "n" * 254, 7, {}]),
    "pf": (
        [
            "enp1s0",
            "0000:41:00.0",
            "41:00.0",
            " 41:00.1 ",
            "50%",
            {"driver": ["mlx5_core", "MLX5", "mLX5"]},
            {"name": ["enp1s0", "enp2s0"], "pci": "0000:41:00.0", "vendor": ["15b3", "15B3:1017"]},
            {"name": ["a"] * 32},
        ],
        [
            "",
            "a/b",
            "e" * 16,
            "10000:41:00.8",
            "x41:00.0",
            "41:00.0x",
            "123456789:41:00.0",
            5,
            None,
            [],
            {},
            *(
                {key: value}
                for key in ("name", "pci", "vendor", "driver")
                for value in ("", [], 5, None, {}, True, False)
            ),
            *(
                {"name": ["a"] * 33},
                {"pci": ["41:00.0"] * 33},
                {"vendor": ["15b3"] * 33},
                {"driver": ["a"] * 33},
            ),
            *({key.upper(): "x"} for key in ("name", "pci", "vendor", "driver")),
            {"vendor": "x15b3"},
            {"driver": "mlx5 core"},
            {"driver": "d" * 56},
            {"vendor": "mellanox"},
            {"vendor": ["15b3", "1017:"]},
            {"pci": "41:00"},
            {"pci": ["41:00.0", "enp1s0"]},
            {"name": "a:b"},
            {"name": ["ok", "x" * 16]},
            {"drivers": "mlx5_core"},
            {"": "x"},
            {"k" * 70: "x"},
        ],
    ),
    "link_type": (["ethernet", "Eth", "IB", "InfiniBand"], ["RoCE", "", 1, None]),
    "driver": (["kernel", "vfio-pci"], ["vfio", "Kernel", "", 0]),
    "vlan": ([0, 100, 4094], [4095, -1, 1.0, "100", None]),
    "qos": ([0, 7], [8, -1, "1", True]),
    "vlan_proto": (["802.1Q", "802.1AD", "802.1q"], ["8021q", "", 802]),
    "mac": (
        ["02:00:00:00:00:01", "0a-00-00-00-00-0F", "02:00:00:00:00:10"],
        [
            "102:00:00:00:00:01",
            "02:00:00:00:00:011",
            "",
            "00:00:00:00:00:00",
            "01:00:00:00:00:01",
            "02:00:00:00:00",
            "02:00:00:00:00:0g",
            "0B-0-0",
            5,
        ],
    ),
    "mtu": ([68, 9000, 65535], [67, 65536, "9000", 1500.0]),
    "trust": ([True, False, "on", "off"], ["yes", "", 1, None, "On"]),
    "spoof_check": ([True, False, "on", "off"], ["true", 0, []]),
    "link_state": (["auto", "enable", "disable"], ["up", "", 1]),
    "guid": (
        [
            "02:00:00:ff:fe:00:00:01",
            "02-00-00-FF-FE-00-00-02",
            "ff:ff:ff:ff:ff:ff:ff:01",
            "01:ff:ff:ff:ff:ff:ff:ff",
        ],
        [
            "",
            "00:00:00:00:00:00:00:00",
            "FF:ff:ff:ff:ff:ff:ff:ff",
            "02:00:00:00:00:01",
            "02:00:00:ff:fe:00:00:011",
            None,
        ],
    ),
    "pkey": (
        ["0x8001", "0X1", "0x10", 10, 32769, 65535],
        ["8001", "0x", "10x1", "0x80011", "0x8000", "0x0", 0, 32768, 65536, -1, None, 1.5],
    ),
    "near": (["gpu"], ["GPU", "nic", "", 1, None, True]),
    "per": (["gpu"], ["gpus", "", 8, None]),
}
"""By key: values that are right, and values that are wrong."""


def _of_row(values: Values) -> tuple[list[Any], list[Any]]:
    """Values of a key that is not above, as its row has them."""
    match values:
        case Whole(smallest, largest):
            return [smallest, largest], [smallest - 1, largest + 1, str(largest), None]
        case Choices(by_word):
            return list(by_word), ["", "nonsense", 1, None]
        case Syntax.FLAG:
            return [True, False, "on", "off"], ["true", 0, [], None]
    raise NotImplementedError(values)


VALUES |= {key: _of_row(row.values) for key, row in OPTIONS.items() if key not in VALUES}

_BESIDE: dict[str, dict[str, Any]] = {"qos": {"vlan": 5}, "vlan_proto": {"vlan": 5}}

GOOD = [
    "",
    " \n\t",
    "[]",
    " [ ] ",
    "[{}]",
    "[{},\n {}]",
    *(
        json.dumps([{**_BESIDE.get(key, {}), key: value}])
        for key, (good, _) in VALUES.items()
        for value in good
    ),
    '[{"min_tx_rate": 15000, "name": "a", "vlan": 1}, {"pf": {"driver": "x"}, "mtu": 9000, "count": 2}, {}]',
    '[{"name": "a"}, {"name": "b", "mac": "02:00:00:00:00:01"}]',
    '[{"name": "a", "network": "n", "enforce": "auto"}, {"name": "A", "network": "n", "enforce": "auto"}]',
    '[{"vlan": 0, "qos": 3, "vlan_proto": "802.1ad"}]',
    '[{"driver": "vfio-pci", "vlan": 7, "enforce": "hardware"}]',
    '[{"guid": "02:00:00:ff:fe:00:00:01", "link_type": "ib", "pkey": "0x8001"}]',
    '[{"min_tx_rate": 5, "max_tx_rate": 5}, {"min_tx_rate": 7, "max_tx_rate": 0}]',
    json.dumps([{}] * 40),
    r'[{"name": "a\u0062"}]',
]
"""Values that the extender accepts."""

BAD = [
    *(
        json.dumps([{**_BESIDE.get(key, {}), key: value}])
        for key, (_, bad) in VALUES.items()
        for value in bad
    ),
    "{}",
    "null",
    "5",
    '"x"',
    "true",
    "false",
    "[",
    "]",
    "[{}",
    "[{}}",
    "[{},]",
    "[{,}]",
    '[{"min_tx_rate": 5,}]',
    '[{"min_tx_rate" 5}]',
    '[{"min_tx_rate": }]',
    "[{'min_tx_rate': 5}]",
    "[{min_tx_rate: 5}]",
    '[{"min_tx_rate": 05}]',
    '[{"min_tx_rate": +5}]',
    '[{"min_tx_rate": NaN}]',
    '[{"min_tx_rate": True}]',
    '[{"min_tx_rate": 9.99e+99}]',
    '[{"vlan": 4095}]' + " " * 4080,
    '[{"min_tx_rate: 5}]',
    '[{"name": "a\nb"}]',
    "[{}] []",
    "[{} {}]",
    "min_tx_rate=5",
    "[5]",
    "[{}, null]",
    "[true]",
    "[false]",
    '["a"]',
    "[[]]",
    '[{"max-tx-rate": 5}]',
    '[{"Min_TX_Rate": 5}]',
    '[{"min_rate": 5}]',
    '[{"speed": 5}]',
    '[{"": 5}]',
    *(json.dumps([{"k" * length: 1}]) for length in (60, 61)),
    *(json.dumps([{"enforce": "x" * length}]) for length in (60, 61)),
    *(json.dumps([{"min_tx_rate": 10**length}]) for length in (59, 60)),
    *(json.dumps([{"pf": {"driver": " " * length}}]) for length in (60, 61)),
    *(json.dumps([{"pf": {"k" * length: "x"}}]) for length in (60, 61)),
    "[" + "{}," * 19 + '{"vlan": 4095}]',
    '[{"vlan": 1, "vlan": 1}]',
    '[{"min_tx_rate": 6, "max_tx_rate": 5}]',
    '[{"min_tx_rate": 19, "max_tx_rate": 9}]',
    '[{"min_tx_rate": 4294967295, "max_tx_rate": 4294967294}]',
    '[{"qos": 1}]',
    '[{"vlan_proto": "802.1q"}]',
    '[{"vlan": 0, "vlan_proto": "802.1q"}]',
    '[{"vlan": 0, "qos": 0, "vlan_proto": "802.1q"}]',
    *(
        json.dumps([{"link_type": "IB", key: VALUES[key][0][1]}])
        for key in ("vlan", "mac", "trust", "spoof_check")
    ),
    *(json.dumps([{"link_type": "Ether", key: VALUES[key][0][0]}]) for key in ("guid", "pkey")),
    *(
        json.dumps([{here: VALUES[here][0][1], there: VALUES[there][0][0]}])
        for here in ("vlan", "mac", "trust", "spoof_check")
        for there in ("guid", "pkey")
    ),
    '[{"driver": "vfio-pci", "mtu": 9000}]',
    '[{"driver": "vfio-pci", "network": "a"}]',
    '[{"driver": "vfio-pci", "enforce": "software"}]',
    '[{"count": 2, "name": "a"}]',
    '[{"count": 2, "mac": "02:00:00:00:00:01"}]',
    '[{"count": 1, "guid": "02:00:00:ff:fe:00:00:01"}]',
    '[{"name": "a"}, {}, {"name": "a"}]',
    '[{"name": "b"}, {"name": "a"}, {"name": "a"}]',
    '[{"mac": "02:00:00:00:00:0a"}, {"mac": "02-00-00-00-00-0A"}]',
    '[{"guid": "02:00:00:ff:fe:00:00:01"}, {"guid": "02:00:00:FF:FE:00:00:01"}]',
    '[{}, {}, {"vlan": 4095}]',
    "[" + "{}," * 31 + "5]",
    "[" + "{}," * 170 + "{",
]
"""Values that the extender refuses, each for one mistake that the policy knows."""

POLICIES = {
    "any": True,
    " same-pf\n": True,
    "": True,
    "same_pf": False,
    "Spread-PFs": False,
    "numa": False,
    "ANY": False,
    "x" * 60: False,
    "x" * 61: False,
}
"""Choices of `k8s-rdma.io/policy`, and whether there is such a policy."""

_KEYS = st.sampled_from([*KEYS, "VLAN", "min-tx-rate", "speed", ""])
_VALUES = st.sampled_from([value for pair in VALUES.values() for values in pair for value in values])
_DEEP = st.recursive(
    _VALUES, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_KEYS, inner, max_size=2)
)


@st.composite
def _element(draw: st.DrawFn) -> dict[str, Any]:
    found = {}
    for key in draw(st.lists(_KEYS, max_size=5)):
        good, bad = VALUES.get(key, ([], []))
        pools = [st.sampled_from(good)] * 6 + [st.sampled_from(bad), _DEEP] if good else [_DEEP]
        found[key] = draw(draw(st.sampled_from(pools)))
    return found


@st.composite
def _damaged(draw: st.DrawFn, text: str) -> str:
    at = draw(st.integers(0, len(text)))
    put = draw(st.sampled_from(["", *'[]{}",:5x \\\n', "null", "é", '"vlan":1,']))
    return text[:at] + put + text[at + draw(st.integers(0, 2)) :]


_documents = st.lists(_element(), max_size=4).flatmap(
    lambda found: st.sampled_from([json.dumps(found), json.dumps(found, indent=1), json.dumps(found)])
)
ANNOTATIONS = _documents | _documents.flatmap(_damaged) | _DEEP.map(json.dumps)
"""Anything that somebody may write, right as often as wrong."""


def mixed(random: Random, count: int) -> Iterator[str]:
    """So many annotations of several keys, a third of them with a character too few or too many."""
    for _ in range(count):
        text = json.dumps([_mixed_element(random) for _ in range(random.randint(1, 3))])
        if random.random() < 1 / 3:
            at = random.randrange(len(text))
            text = (
                text[:at]
                + random.choice(["", "", ",", '"', "}", "]", " 5"])
                + text[at + random.randint(0, 1) :]
            )
        yield text


def _mixed_element(random: Random) -> dict[str, Any]:
    keys = random.sample(sorted(VALUES), random.randint(0, 4))
    return {key: random.choice(VALUES[key][random.random() < 0.1]) for key in keys}
