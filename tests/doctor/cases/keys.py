"""Facts of `keys`: in order, and for each kind of finding."""

from __future__ import annotations

from k8s_rdma.doctor.cluster.components import KeyFacts, KeyUsage, check_keys

IN_ORDER = list(check_keys(KeyFacts(named=("0123456789abcdef", "hmac", "hmac", ""))))

CASES = {
    "keys-removed": list(
        check_keys(KeyFacts(named=(), usage=(KeyUsage(3, "0123456789abcdef", "ed25519", "removed"),)))
    ),
}
