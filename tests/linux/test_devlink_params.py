"""Parameters of devlink as the kernel's header has them."""

from __future__ import annotations

import struct

import pytest

from k8s_rdma.linux.netlink.devlink import Devlink, devlink_flags
from k8s_rdma.linux.netlink.socket import attribute, nested, text
from linux.recorded import answering

BUS, NAME = 1, 2
PARAM, PARAM_NAME, TYPE, VALUES, VALUE, DATA, CMODE = 80, 81, 83, 84, 85, 86, 87
FLAG, U32 = 6, 3


def value(*, on: bool, cmode: int) -> bytes:
    return nested(VALUE, *([attribute(DATA, b"")] if on else []), attribute(CMODE, bytes([cmode])))


def told(*values: bytes, name: str = "enable_roce", kind: int = FLAG) -> dict[str, bool]:
    """Of a device with one parameter, on a bus whose name is a number of a family as well: both are asked."""
    param = nested(PARAM, text(PARAM_NAME, name), attribute(TYPE, bytes([kind])), nested(VALUES, *values))
    device = text(NAME, "0000:03:00.0")
    header = struct.pack("=BBxx", 38, 1)
    devlink = Devlink(answering(header + text(BUS, "p") + device + param))
    return dict(devlink_flags(devlink, "p", "enable_roce"))


@pytest.mark.parametrize("on", [True, False])
def test_flag_is_an_attribute_that_is_there_or_not(on):
    assert told(value(on=on, cmode=1)) == {"0000:03:00.0": on}


def test_value_of_now_stands_above_one_for_the_next_boot():
    assert told(value(on=True, cmode=2), value(on=False, cmode=0)) == {"0000:03:00.0": False}


def test_other_parameters_and_other_types_are_passed_over():
    assert told(value(on=True, cmode=0), name="enable_rnic") == {}
    assert told(value(on=True, cmode=0), kind=U32) == {}


def test_kernel_without_devices_reports_no_parameters(namespace):
    with Devlink() as devlink:
        assert devlink_flags(devlink, "pci", "enable_roce") == {}
