"""Clients of plain HTTP, which load no certificate authorities: the system's take 20 ms for each client."""

from __future__ import annotations

import ssl

NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""The `verify` of such a client: it trusts no authority, so that no `https` URL works."""
