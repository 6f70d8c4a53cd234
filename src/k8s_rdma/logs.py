"""How the processes log: one JSON object a line on stderr, a fixed event name, values as keys."""

from __future__ import annotations

import logging
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
    # A library's warnings are about its callers; those of uvicorn come with every client that speaks no HTTP.
    logging.basicConfig(level=logging.ERROR, handlers=[_OfLibraries()])


class _OfLibraries(logging.Handler):
    """Their errors in our form."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log it."""
        told = {"logger": record.name, "message": record.getMessage(), "exc_info": record.exc_info}
        structlog.get_logger().log(record.levelno, "library_error", **told)
