"""Ranges of rates that drivers take."""

from __future__ import annotations

from hypothesis import strategies as st

from k8s_rdma.core.rate_ability import RateRange

RANGES = st.builds(
    lambda step, least, more: RateRange(step=step, smallest=step * least, largest=step * (least + more)),
    st.integers(1, 300),
    st.integers(1, 9),
    st.integers(0, 99),
)
