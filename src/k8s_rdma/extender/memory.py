"""Have the garbage collector leave alone what is kept.

What is known of a large cluster is a million objects that stay. The collector goes through all of them
again and again while they are read in, which takes a quarter of a start, and later whenever it looks for old
garbage: half a second in which nobody is answered.
"""

from __future__ import annotations

import gc

_YOUNG = 50_000
"""Objects made beyond those freed, before the young ones are looked at; the interpreter's own is 700. A
filter of 5,000 nodes makes some ten thousand, all of which are freed without the collector."""


def collect_seldom() -> None:
    """While much is being read in, and from then on."""
    _, middle, old = gc.get_threshold()
    gc.set_threshold(_YOUNG, middle, old)


def keep_what_is_known() -> None:
    """What is there by now is not looked at again; it is still freed when nobody refers to it."""
    gc.collect()
    gc.freeze()
