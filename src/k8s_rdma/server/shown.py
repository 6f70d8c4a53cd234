"""What is shown of the node now."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from k8s_rdma.server.answers import Answers


class Shown:
    """The answers of now, and a way to wait for others; however many wait, a change is one event."""

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self._changed = asyncio.Event()

    def show(self, answers: Answers) -> None:
        """From now on these."""
        self.answers = answers
        self._changed.set()
        self._changed = asyncio.Event()

    async def change(self) -> None:
        """Return once others are shown."""
        await self._changed.wait()
