"""Kubelet's ListAndWatch calls at one endpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.deviceplugin.kubelet.published import Published

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable


class Followers:
    """Gives each the encoded list at once, and again after each change, until `end`."""

    def __init__(self, message: bytes, changed: Callable[[], None]) -> None:
        """changed: called when there is one more or one fewer."""
        self._message = Published[bytes | None](message)
        self._changed = changed
        self.count = 0

    def tell(self, message: bytes) -> None:
        """Another list."""
        self._message.publish(message)

    def end(self) -> None:
        """Nothing more will come."""
        self._message.publish(None)

    async def follow(self, _asked: None) -> AsyncGenerator[bytes, None]:
        """Lists as they come."""
        self.count += 1
        self._changed()
        try:
            message = self._message.value
            while message is not None:
                yield message
                message = await self._message.other_than(message)
        finally:
            self.count -= 1
            self._changed()
