"""docs/cni.md tells every key of the configuration and every code of an error."""

from __future__ import annotations

import re
from pathlib import Path

from k8s_rdma.errors import STATUS
from k8s_rdma.wire.netconf_keys import INHERITED_KEYS, OWN_KEYS

ROWS = re.findall(r"^\| `?([\w]+)`? \|", (Path(__file__).parents[2] / "docs" / "cni.md").read_text(), re.M)
OF_THE_EXECUTABLE = {5}
"""An I/O failure (CNI specification 1.1.0, section 5): see `cni/cni_error.h`."""


def test_every_key_of_ours_is_documented() -> None:
    assert set(ROWS) >= OWN_KEYS | INHERITED_KEYS


def test_the_codes_of_errors_are_those_that_are_documented() -> None:
    documented = [int(row) for row in ROWS if row.isdigit()]
    assert documented == sorted({status.cni for status in STATUS.values()} | OF_THE_EXECUTABLE)
