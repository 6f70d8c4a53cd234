"""Caps of claims that policies take and refuse: the same for CEL's own library and for a real API server."""

from __future__ import annotations

import json

from k8s_rdma.core.types import MAX_RATE_MBPS
from k8s_rdma.wire.claim_caps import MAX_CAPS, MAX_CAPS_TEXT

GOOD = [
    '{"rdma0": 80000}',
    ' {\n"rdma0" : 0 ,\t"sync":4294967295}\n',
    "{}",
    '{"50%": 1, "x-y_z.1": 2, "aaaaaaaaaaaaaaa": 3}',
    '{"rdma0": 1, "rdma0": 2}',
    r'{"rdma\u0030": 80000}',
    json.dumps({f"n{index}": MAX_RATE_MBPS for index in range(MAX_CAPS)}),
    '{"rdma0": 80000}'.ljust(MAX_CAPS_TEXT),
]

_OBJECT = 'k8s-rdma.io/claim-caps: wanted names of interfaces with caps in Mb/s, such as {"rdma0": 80000}'
_FIELD = (
    ": wanted a name of at most 15 characters and whole Mb/s up to 4294967295, 0 for no cap, such as "
    '"rdma0": 80000'
)

BAD = [
    *(
        (text, _OBJECT)
        for text in ("80000", "[]", '[{"rdma0": 80000}]', " ", "{", '{"rdma0": 1,}', "{rdma0: 1}")
    ),
    *((text, _OBJECT) for text in ('{"rdma0": {"max": 1}}', '{"rdma0": 1}{}', '{"a": 1 "b": 2}', '{"a" 1}')),
    *(
        (f'{{"rdma0": 1, {field}}}', f"k8s-rdma.io/claim-caps: {field}{_FIELD}")
        for field in (
            '"sync": "80G"',
            '"sync": -1',
            '"sync": 1.5',
            '"sync": 1e400',
            '"sync": 007',
            '"sync": null',
            '"sync": true',
            '"sync": 4294967296',
            '"sync": 99999999999999999999999999',
            '"": 1',
            '"aaaaaaaaaaaaaaaa": 1',
            '"a/b": 1',
            '"a:b": 1',
            '"a b": 1',
        )
    ),
    (f'{{"{"x" * 100}": 1}}', f'k8s-rdma.io/claim-caps: "{"x" * 59}...{_FIELD}'),
    (
        json.dumps({f"n{index}": 1 for index in range(MAX_CAPS + 1)}),
        "k8s-rdma.io/claim-caps: 1025 interfaces, at most 1024 are read",
    ),
    (
        '{"rdma0": 80000}'.ljust(MAX_CAPS_TEXT + 1),
        "k8s-rdma.io/claim-caps: 65537 characters, at most 65536 are read",
    ),
    ("{" * 70_000, "k8s-rdma.io/claim-caps: 70000 characters, at most 65536 are read"),
    ('{"":0,' * 10_000, _OBJECT),
]
