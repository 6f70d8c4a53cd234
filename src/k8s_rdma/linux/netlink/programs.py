"""BPF programs on a netdev that rtnetlink does not show: tcx, at ingress and egress.

They move along with the netdev, while qdiscs and their filters do not, and a bpf_link holds them even without
the process that made it.

Source: bpf(2), Linux `include/uapi/linux/bpf.h` (BPF_PROG_QUERY), `kernel/bpf/tcx.c`, `net/core/dev.c`
(dev_shutdown in __dev_change_net_namespace, dev_tcx_uninstall in unregister_netdevice_many_notify), 6.18.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

from k8s_rdma.core.netdev_attributes import TCX_EGRESS, TCX_INGRESS
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.sysfs import error_name

_SYSCALLS = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "ppc64le": 361, "s390x": 351}
_PROG_QUERY, _ATTACH_TYPES = 16, {TCX_INGRESS: 46, TCX_EGRESS: 47}
_QUERY = struct.Struct("=IIIIQI4x")
_COUNT = 5
_SIZE = 64

_WITHOUT = (errno.EINVAL, errno.ENOSYS)
"""Errors of a kernel without tcx (before 6.6), or without BPF."""

_libc = ctypes.CDLL(None, use_errno=True)


def tcx_programs(index: int) -> dict[str, str]:
    """Return the number of tcx programs of a link of the calling thread's network namespace, as text.

    Empty for none. Without the right to ask (EPERM, in a user namespace) there is no entry: no process with
    the same rights can attach any. KernelError when there is no such link.
    """
    call = _SYSCALLS.get(os.uname().machine)
    if call is None:
        return {}
    found = {}
    for name, kind in _ATTACH_TYPES.items():
        question = ctypes.create_string_buffer(_QUERY.pack(index, kind, 0, 0, 0, 0), _SIZE)
        if _libc.syscall(call, _PROG_QUERY, question, _SIZE) == 0:
            count = _QUERY.unpack_from(question)[_COUNT]
            found[name] = str(count) if count else ""
            continue
        number = ctypes.get_errno()
        if number not in (*_WITHOUT, errno.EPERM):
            msg = f"{name} of link #{index}: {error_name(number)}: {os.strerror(number)}"
            raise KernelError(msg)
    return found
