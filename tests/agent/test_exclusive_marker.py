"""The marker by which the executable knows, while no agent runs, that pods may hold exclusive devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from k8s_rdma.agent.ledger_store import EXCLUSIVE_DEVICES, mark_exclusive_devices
from k8s_rdma.errors import LedgerError

if TYPE_CHECKING:
    from pathlib import Path


def test_error_names_the_exclusive_devices_when_the_marker_cannot_be_removed(tmp_path: Path) -> None:
    (tmp_path / EXCLUSIVE_DEVICES).mkdir()

    with pytest.raises(LedgerError, match=r"^marker of exclusive devices: .*/exclusive-devices: "):
        mark_exclusive_devices(tmp_path, present=False)
