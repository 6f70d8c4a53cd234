"""How the processes log: one JSON object a line on stderr, a fixed event name, values as keys."""

from __future__ import annotations

import sys

import structlog


def configure(process: str) -> None:
    """Set up logging for this process; called once, first of all."""
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
