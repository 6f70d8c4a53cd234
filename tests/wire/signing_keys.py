"""Shared secrets and pairs of keys, old and new."""

from __future__ import annotations

from k8s_rdma.wire.ed25519_keys import PrivateKey
from k8s_rdma.wire.placement_keys import SharedKey

OLD, NEW = SharedKey(b"the key of before"), SharedKey(b"the key of now")
PAIR, OTHER_PAIR = PrivateKey(b"p" * 32), PrivateKey(b"q" * 32)
