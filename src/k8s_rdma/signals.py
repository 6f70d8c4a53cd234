"""Ending a process when it is told to."""

from __future__ import annotations

import asyncio
import signal


def stop_on_signals(*others: signal.Signals) -> asyncio.Event:
    """An event of the running loop that SIGTERM, SIGINT and others set."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, *others):
        loop.add_signal_handler(number, stop.set)
    return stop
