"""Parameters of devlink devices that are true or false, as they are now.

Source: Linux `include/uapi/linux/devlink.h`, Documentation/networking/devlink/devlink-params.rst, 6.1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.linux.netlink.devlink import device_of
from k8s_rdma.linux.netlink.socket import attributes, each_attribute, number, string

if TYPE_CHECKING:
    from collections.abc import Mapping

    from k8s_rdma.linux.netlink.devlink import Devlink

_PARAM_GET = 38
_PARAM, _NAME, _TYPE, _VALUES, _VALUE, _DATA, _CMODE = 80, 81, 83, 84, 85, 86, 87
_FLAG = 6
"""NLA_FLAG: true is an attribute that is there (devlink_nl_param_value_fill_one, net/core/devlink.c)."""


def devlink_flags(devlink: Devlink, bus: str, name: str) -> Mapping[str, bool]:
    """A parameter by device name on that bus, of those that have it; NetlinkError EPERM without privileges.

    Of a value for now and one for later, the first by configuration mode: that of now.
    """
    found: dict[str, bool] = {}
    for answer in devlink.dump(_PARAM_GET, "devlink parameters"):
        device, param = device_of(answer), attributes(answer.get(_PARAM, b""))
        if device.bus == bus and string(param.get(_NAME, b"")) == name and number(param[_TYPE]) == _FLAG:
            values = [attributes(value) for kind, value in each_attribute(param[_VALUES]) if kind == _VALUE]
            if values:
                now = min(values, key=lambda value: number(value[_CMODE]))
                found[device.name] = _DATA in now
    return found
