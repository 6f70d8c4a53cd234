"""RDMA netlink: the RDMA devices of one network namespace, and their move into another.

Source: Linux `include/uapi/rdma/rdma_netlink.h` and `drivers/infiniband/core/nldev.c`, 6.1; rdma-system(8).
"""

from __future__ import annotations

import errno
from contextlib import nullcontext

from k8s_rdma.core.devices.rdma_devices import NetnsMode
from k8s_rdma.linux.netlink.queries import RdmaNetlinkDevice, RdmaPort
from k8s_rdma.linux.netlink.socket import (
    RDMA,
    NetlinkError,
    NetlinkSocket,
    SocketClient,
    attributes,
    connect,
    each_attribute,
    number,
    string,
    text,
    u32,
)
from k8s_rdma.linux.netns import entered

_NLDEV = 5 << 10
_DEV_GET, _SET, _PORT_GET, _SYS_GET, _STAT_GET = (_NLDEV + command for command in (1, 2, 5, 6, 17))
_DEV_INDEX, _DEV_NAME, _PORT_INDEX, _FW_VERSION, _NODE_GUID = 1, 2, 3, 5, 6
_PORT_STATE, _NDEV_INDEX, _NETNS_MODE, _NET_NS_FD = 12, 50, 66, 68
_HWCOUNTERS, _HWCOUNTER_NAME, _HWCOUNTER_VALUE = 80, 82, 83

_PORT_STATES = ("NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER")
"""The names of `enum ib_port_state`, include/rdma/ib_verbs.h."""

_ATTEMPTS = 5


class RdmaNetlink(SocketClient[NetlinkSocket]):
    """One namespace's RDMA devices. Every failure is a `NetlinkError`.

    The socket keeps the namespace alive: close it soon unless it is one's own. Keep the descriptor open until
    then.
    """

    def __init__(self, namespace: int | None = None, *, socket: NetlinkSocket | None = None) -> None:
        """Open a socket in the namespace of this descriptor, by default the thread's; or use `socket`.

        NetlinkError EPROTONOSUPPORT while the kernel has no RDMA (no driver has loaded `ib_core`).
        """
        self._namespace = namespace
        self.socket = socket or NetlinkSocket(connect(RDMA, namespace))

    def netns_mode(self) -> NetnsMode:
        """Return the mode of this machine (`rdma system`)."""
        found = attributes(self.socket.get(_SYS_GET, b"", "RDMA namespace mode"))
        return NetnsMode.SHARED if number(found[_NETNS_MODE]) else NetnsMode.EXCLUSIVE

    def devices(self) -> tuple[RdmaNetlinkDevice, ...]:
        """Return all devices that this namespace sees, ordered by index."""
        for _ in range(_ATTEMPTS):
            try:
                found = map(attributes, self.socket.dump(_DEV_GET, b"", "RDMA devices"))
                return tuple(
                    sorted(
                        (self._device(attributes_of_device) for attributes_of_device in found),
                        key=lambda device: device.index,
                    )
                )
            except NetlinkError as error:
                if error.errno != errno.EINVAL:  # a device that went after it was listed
                    raise
        raise NetlinkError("RDMA devices", errno.EINTR, f"changed under way {_ATTEMPTS} times")

    def indexes(self) -> dict[str, int]:
        """Return the indexes of the devices that this namespace sees, by name, in one request."""
        found = map(attributes, self.socket.dump(_DEV_GET, b"", "RDMA devices"))
        return {
            string(attributes_of_device[_DEV_NAME]): number(attributes_of_device[_DEV_INDEX])
            for attributes_of_device in found
        }

    def hw_counters(self, index: int) -> dict[str, int]:
        """Return the `hw_counters` of a device's first port by the kernel's names; empty without any."""
        try:
            answer = self.socket.get(
                _STAT_GET, u32(_DEV_INDEX, index) + u32(_PORT_INDEX, 1), f"counters of RDMA device #{index}"
            )
        except NetlinkError as error:
            if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):  # no such device here; it has no counters
                return {}
            raise
        entries = (attributes(entry) for _, entry in each_attribute(attributes(answer)[_HWCOUNTERS]))
        return {string(entry[_HWCOUNTER_NAME]): number(entry[_HWCOUNTER_VALUE]) for entry in entries}

    def rename(self, index: int, name: str, operation: str) -> None:
        """Rename a device of this namespace; `operation` begins the error."""
        self.socket.request(_SET, u32(_DEV_INDEX, index) + text(_DEV_NAME, name), operation)

    def move(self, index: int, namespace: int, operation: str) -> None:
        """Move a device of this namespace into another one (a descriptor); `operation` begins the error.

        Programs that have it open are disconnected. EOPNOTSUPP in shared mode, and when the driver does not
        support it; EINVAL when there is no such device here.
        """
        # A device is taken from the namespace of the thread that asks, whatever that of its socket is
        # (ib_device_set_netns_put, drivers/infiniband/core/device.c: ENODEV).
        with nullcontext() if self._namespace is None else entered(self._namespace):
            self.socket.request(_SET, u32(_DEV_INDEX, index) + u32(_NET_NS_FD, namespace), operation)

    def _device(self, found: dict[int, bytes]) -> RdmaNetlinkDevice:
        index, name = number(found[_DEV_INDEX]), string(found[_DEV_NAME])
        ports = self.socket.dump(_PORT_GET, u32(_DEV_INDEX, index), f"ports of RDMA device {name}")
        return RdmaNetlinkDevice(
            index=index,
            name=name,
            node_guid=_guid(found.get(_NODE_GUID, b"")),
            firmware=string(found.get(_FW_VERSION, b"")),
            ports=tuple(_port(attributes(port)) for port in ports),
        )


def _port(found: dict[int, bytes]) -> RdmaPort:
    state = number(found.get(_PORT_STATE, b""))
    return RdmaPort(
        number=number(found[_PORT_INDEX]),
        state=_PORT_STATES[state] if state < len(_PORT_STATES) else str(state),
        netdev_index=number(found[_NDEV_INDEX]) if _NDEV_INDEX in found else None,
    )


def _guid(value: bytes) -> str:
    """Format a GUID as in sysfs, `f0e2:2eff:fe4a:8ec6`; netlink has a number in the machine's byte order."""
    return number(value).to_bytes(8, "big").hex(":", 2) if value else ""
