"""What a VF's port on the bridge says of the VF, in its alias: whom it was given to, and its settings.

A port ends with its VF, and so do these: one that is made anew has the settings of every new VF.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from k8s_rdma.core.options import LinkState

if TYPE_CHECKING:
    from k8s_rdma.linux.netlink.rtnl import Link

_SOMEBODY = -1


class PortState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """At most 255 bytes of JSON.

    given: inode of the namespace that the VF was given to, 0 while it is home.
    mac: what its PF has for it; empty for the one that it was made with. vlan: 0 for none.
    """

    given: int = 0
    mac: str = ""
    vlan: int = 0
    trust: bool = False
    spoof_check: bool = True
    link_state: LinkState = LinkState.AUTO

    @property
    def sends_as_anybody(self) -> bool:
        """Whether its frames may bear any source MAC: nobody checks, or it may give itself every one."""
        return self.trust or not self.spoof_check


_decoder = msgspec.json.Decoder(PortState | int)


def state_of(port: Link) -> PortState:
    """What a port's alias says; what is no alias of ours is taken for one of somebody who has the VF."""
    if not port.alias:
        return PortState()
    try:
        found = _decoder.decode(port.alias)
    except msgspec.MsgspecError:
        return PortState(given=_SOMEBODY)
    return PortState(given=found) if isinstance(found, int) else found


def alias_of(state: PortState) -> str:
    """What a port's alias says then."""
    return "" if state == PortState() else msgspec.json.encode(state).decode()
