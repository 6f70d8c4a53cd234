"""Errors by name."""

from __future__ import annotations

import errno


def error_name(number: int) -> str:
    """As errno(3) has it, or the number; of the two for EOPNOTSUPP the one that the kernel's sources use."""
    return "EOPNOTSUPP" if number == errno.EOPNOTSUPP else errno.errorcode.get(number, str(number))
