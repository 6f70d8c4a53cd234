"""The links of a network namespace; only those that changed are read again.

The kernel takes 5 us for each link of a list, and an observation needs all of them after each change. It
reports every change before it answers the request that made it, except:

- another alias of a link that is down (`netdev_state_change`, net/core/dev.c, Linux 6.18);
- another carrier, up to a second later (net/core/link_watch.c);
- what becomes of a netdev in another namespace.
"""

from __future__ import annotations

import errno
import socket
import struct
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from k8s_rdma.linux.changes import LINKS, QUEUE_BYTES, Gathering, Subscription
from k8s_rdma.linux.netlink.socket import NetlinkError, SocketClient

if TYPE_CHECKING:
    from collections.abc import Collection

    from k8s_rdma.linux.netlink.rtnl import Link, Rtnl

_PORT = struct.Struct("=12xI")  # nlmsghdr up to its port

MOST_READ_SINGLY = 24
"""A link that is read singly takes as long as four of a list."""


def beside(port: int, subscription: Subscription) -> Subscription:
    """Return the subscription without the reports on requests of a socket, which knows what it did.

    port: the socket's.
    """

    def read(message: bytes, gathering: Gathering) -> bool:
        return _PORT.unpack_from(message)[0] != port and subscription.read(message, gathering)

    return replace(subscription, read=read)


class LinkReports(SocketClient[socket.socket]):
    """The kernel's reports of one subscription, in the calling thread's namespace."""

    def __init__(self, subscription: Subscription, subject: str) -> None:
        """Subscribe. subscription: of no optional family. subject: of an error."""
        self._subscription = subscription
        try:
            self.socket = cast("socket.socket", subscription.open(QUEUE_BYTES))
        except OSError as error:
            raise NetlinkError(f"reports of {subject}", error.errno or errno.EIO) from error

    def links(self) -> set[int] | None:
        """Return the indexes of links with a report since the last call; None if reports were lost."""
        gathering = Gathering()
        self._subscription.drain(self.socket, gathering)
        return None if gathering.everything else gathering.links


class KnownLinks(LinkReports):
    """Reads the links of the namespace of `rtnl`, which is the calling thread's."""

    def __init__(self, rtnl: Rtnl) -> None:
        """Subscribe to the kernel's reports; nothing is read yet."""
        super().__init__(LINKS, "links")
        self._rtnl = rtnl
        self._links: dict[int, Link] | None = None

    def read(self, carriers: Collection[str] = ()) -> Collection[Link]:
        """Return all links as they are now, but for carriers.

        Of a link whose other end has left this namespace, `peer` and `peer_elsewhere` are those of when it
        left.

        carriers: the names of links that are read again in any case, for their present carrier.
        """
        changed = self.links()
        if self._links is not None and changed is not None:
            changed |= {
                link.index for link in self._links.values() if link.name in carriers or _alias_is_unseen(link)
            }
        if self._links is None or changed is None or len(changed) > MOST_READ_SINGLY:
            self._links = {link.index: link for link in self._rtnl.links()}
        else:
            self._read_again(self._links, changed)
        return self._links.values()

    def _read_again(self, links: dict[int, Link], changed: set[int]) -> None:
        """Read the links of these indexes, and the other ends of those: they may have parted, or met."""
        pending, visited = set(changed), set[int]()
        while pending:
            index = pending.pop()
            visited.add(index)
            former, present = links.pop(index, None), self._rtnl.link_at(index)
            if present is not None:
                links[index] = present
            pair = (link for link in (former, present) if link is not None)
            ends = {link.peer for link in pair if link.peer_elsewhere is None}
            pending |= {end for end in ends if end in links} - visited


def _alias_is_unseen(link: Link) -> bool:
    """Report whether a link's alias counts here, and may change without a report."""
    return not link.is_up and (link.kind == "bridge" or bool(link.master))
