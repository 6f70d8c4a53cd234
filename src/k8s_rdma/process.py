"""What every process has: signals that end it, and logs as one JSON object a line on stderr."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys

import structlog


def stop_on_signals(*others: signal.Signals) -> asyncio.Event:
    """An event of the running loop that SIGTERM, SIGINT and others set."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, *others):
        loop.add_signal_handler(number, stop.set)
    return stop


def configure_logging(process: str) -> None:
    """Set up logging for this process: fixed event names, values as keys. Called once, first of all."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(process=process)
    # A library's warnings are about its callers; those of uvicorn come with every client that speaks no HTTP.
    logging.basicConfig(level=logging.ERROR, handlers=[_OfLibraries()])


class _OfLibraries(logging.Handler):
    """Their errors in our form."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log it."""
        fields = {"logger": record.name, "message": record.getMessage(), "exc_info": record.exc_info}
        structlog.get_logger().log(record.levelno, "library_error", **fields)
