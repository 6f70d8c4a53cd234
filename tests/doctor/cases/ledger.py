"""Facts of `ledger`: in order, and for each kind of finding."""

from __future__ import annotations

from dataclasses import replace

from k8s_rdma.doctor.node.ledger import LedgerFacts, check_ledger

LEDGER = LedgerFacts(path="/var/lib/k8s-rdma/ledger.db", exists=True, receipts=3)
IN_ORDER = list(check_ledger(LEDGER))

CASES = {
    "ledger-none": list(check_ledger(replace(LEDGER, exists=False))),
    "ledger-unusable": list(check_ledger(replace(LEDGER, fault="corrupt: row net/c/eth0"))),
    "ledger-newer": list(
        check_ledger(
            replace(LEDGER, fault="of version 5, and this program knows versions up to 4", newer=True)
        )
    ),
    "ledger-unfinished": list(check_ledger(replace(LEDGER, unfinished=("default/a (prepared)",)))),
}
