"""Time as an object, for what waits and measures."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Time:
    """monotonic: in seconds, as `time.monotonic`. now: with a time zone. pause: as `asyncio.sleep`."""

    monotonic: Callable[[], float]
    now: Callable[[], datetime]
    pause: Callable[[float], Awaitable[None]]


REAL_TIME = Time(monotonic=time.monotonic, now=lambda: datetime.now(UTC), pause=asyncio.sleep)
