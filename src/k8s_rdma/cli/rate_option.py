"""Rates on the command line: in Mb/s, or as a quantity of bits a second."""

from __future__ import annotations

from typing import Any

import typer

from k8s_rdma.core.types import BITS_PER_MEGABIT, MAX_RATE_MBPS
from k8s_rdma.wire.pod_spec import quantity


def rate_option(name: str, description: str) -> Any:
    """Make an option that takes a rate, whose value is in Mb/s."""
    return typer.Option(name, metavar="RATE", parser=read_rate, help=f"{description} In Mb/s, or such as 5G.")


def read_rate(text: object) -> int:
    """Read a rate in Mb/s.

    For example, `5000` and `5G` are 5,000 Mb/s, as in a ResourceClaim's `bandwidth: 5G`. BadParameter if the
    text is not a rate, or has a part of a Mb/s.
    """
    if isinstance(text, int):  # a default
        return text
    word = str(text).strip()
    try:
        mbps = quantity(word) / (1 if word.isdecimal() else BITS_PER_MEGABIT)
    except ValueError as error:
        msg = f"{word}: wanted a rate such as 5000, which is in Mb/s, or 5G"
        raise typer.BadParameter(msg) from error
    if mbps.denominator != 1 or not 0 <= mbps <= MAX_RATE_MBPS:
        msg = f"{word}: wanted 0 to {MAX_RATE_MBPS} Mb/s, in whole Mb/s"
        raise typer.BadParameter(msg)
    return int(mbps)
