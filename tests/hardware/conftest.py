"""Real PFs, as the contract's tests have them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from contract.hardware_lab import HardwareLab

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[HardwareLab]:
    made = HardwareLab(tmp_path)
    yield made
    made.close()
