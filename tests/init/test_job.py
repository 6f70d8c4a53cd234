"""A job's advice on values that the kernel refuses, and the clock that a signal stops."""

from __future__ import annotations

import errno
import threading
from typing import TYPE_CHECKING

import pytest

from k8s_rdma.init.job import StoppableClock, StoppedError, wait_until
from k8s_rdma.init.pf_setup import PfResult

if TYPE_CHECKING:
    from collections.abc import Callable

    from init.conftest import World

    Make = Callable[..., World]


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOMEM, "enable SR-IOV, ARI"),
        (errno.ENOSPC, "enable SR-IOV, ARI"),
        (errno.EINVAL, "enable SR-IOV in the BIOS and in the NIC's firmware"),
        (errno.EBUSY, "a VM holds one"),
        (errno.ENOENT, "its driver makes no VFs by sysfs"),
        (errno.EACCES, "privileged container"),
        (errno.EXDEV, "dmesg"),
    ],
)
def test_refusal_of_the_kernel_has_advice(world: Make, number: int, advice: str) -> None:
    w = world()
    w.machine.refuse("sriov_numvfs", "7", number, times=3)
    outcome = w.init()["enp1s0f0"]
    assert outcome.result is PfResult.FAILED
    assert errno.errorcode[number] in outcome.message
    assert advice in outcome.advice


def test_read_only_sysfs_is_said_at_once(world: Make) -> None:
    w = world()
    w.machine.read_only = True
    outcome = w.init()["enp1s0f0"]
    assert outcome.result is PfResult.FAILED
    assert "EROFS" in outcome.message
    assert "mount /sys writable" in outcome.advice
    assert w.machine.now_s < 1


def test_waiting_ends_when_the_process_is_signalled() -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(StoppedError):
        wait_until(StoppableClock(stop), 60, lambda: False)
