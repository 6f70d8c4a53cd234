"""Verification of servers' certificates, alike on every Python.

Python 3.13 demands all of RFC 5280 by default (`VERIFY_X509_STRICT`), and earlier versions do not.
"""

from __future__ import annotations

import ssl


def demand_rfc5280(context: ssl.SSLContext) -> None:
    """Have all of RFC 5280 demanded, for servers that are ours."""
    context.verify_flags |= ssl.VERIFY_X509_STRICT


def verify_as_go(context: ssl.SSLContext) -> None:
    """Verify as Go's programs, for servers of others, such as the API server and Prometheus.

    An authority may lack key identifiers, as on older EKS clusters, and another may have issued it.
    """
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
