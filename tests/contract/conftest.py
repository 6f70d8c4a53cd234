"""The kernels that must keep the contract."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from contract.lab import FakeLab

if TYPE_CHECKING:
    from collections.abc import Callable

    from contract.lab import Lab


@pytest.fixture(params=["fake"])
def make_lab(request: pytest.FixtureRequest) -> Callable[[int], Lab]:
    """A machine with so many VFs on each PF, run by one of the kernels."""
    return FakeLab


@pytest.fixture
def lab(make_lab: Callable[[int], Lab]) -> Lab:
    return make_lab(3)
