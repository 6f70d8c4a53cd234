"""The kernels that must keep the contract."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from contract.hardware_lab import HardwareLab, needs_hardware
from contract.lab import FakeLab, Lab
from contract.linux_lab import needs_namespaces
from contract.virtual_lab import VirtualLab

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(
    params=[
        "fake",
        pytest.param("virtual", marks=needs_namespaces),
        pytest.param("hardware", marks=needs_hardware),
    ]
)
def make_lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[int], Lab]]:
    """A machine with so many VFs on each PF, run by one of the kernels."""
    with ExitStack() as stack:

        def make(vfs: int) -> Lab:
            if request.param == "fake":
                return FakeLab(vfs)
            lab = VirtualLab(tmp_path, vfs) if request.param == "virtual" else HardwareLab(tmp_path)
            stack.callback(lab.close)
            if lab.vfs < vfs:
                pytest.skip(f"needs {vfs} VFs on a PF, has {lab.vfs}")
            return lab

        yield make


@pytest.fixture
def lab(make_lab: Callable[[int], Lab]) -> Lab:
    return make_lab(3)
