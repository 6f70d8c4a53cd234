"""The modes of `install-cni`, by the network that it puts on a node."""

from __future__ import annotations

from enum import StrEnum, unique


@unique
class NetworkMode(StrEnum):
    """The network in our file.

    NONE: no file of ours; only a removal reads it.
    CHAINED: the node's first other network, and our plugin behind it.
    ALONE: our plugin.
    """

    NONE = "none"
    CHAINED = "chained"
    ALONE = "alone"
