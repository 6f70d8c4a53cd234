from __future__ import annotations

import json
import os
import re
import resource
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from factories import PF0, PF1, interface, pod, receipt
from k8s_rdma.core.devices.pod_devices import SlotInUse
from k8s_rdma.core.ledger import (
    ClaimUid,
    DelegatedPlugin,
    Ledger,
    LedgerClaim,
    Phase,
    RateChange,
    Receipt,
)
from k8s_rdma.core.types import Enforce
from k8s_rdma.errors import LedgerError
from k8s_rdma.linux.receipts import OLDEST, REBUILD, VERSION, CorruptLedgerError, Receipts, encode_receipt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


IPAM = DelegatedPlugin(plugin="host-local", netconf=b'{"name":"n"}', cni_path="/opt/cni/bin", cni_args="A=b")


def test_receipts_come_back_as_they_were_when_opened_again(tmp_path: Path) -> None:
    first = receipt("a", interface(PF0, 0, "rdma0", 5, 9), ipam=IPAM)
    second = receipt("b", interface(PF1, 1), phase=Phase.PREPARED)
    receipts = Receipts(tmp_path / "state" / "ledger.db")
    receipts.put(first)
    receipts.put(second)
    receipts.put(replace(second, phase=Phase.ATTACHED))
    receipts.close()
    reopened = Receipts(tmp_path / "state" / "ledger.db")
    ledger = reopened.load()
    reopened.close()
    assert dict(ledger.receipts) == {
        first.attachment: first,
        second.attachment: replace(second, phase=Phase.ATTACHED),
    }


def test_receipts_forget_removed_attachments(tmp_path: Path) -> None:
    receipts = Receipts(tmp_path / "ledger.db")
    receipts.put(receipt("a"))
    receipts.remove(receipt("a").attachment)
    receipts.remove(receipt("a").attachment)
    assert not receipts.load().receipts
    receipts.close()


def test_receipts_refuse_a_second_agent(tmp_path: Path) -> None:
    first = Receipts(tmp_path / "ledger.db")
    with pytest.raises(LedgerError, match="in use; is another agent running on this node") as caught:
        Receipts(tmp_path / "ledger.db")
    assert not isinstance(caught.value, CorruptLedgerError)
    first.close()


def test_receipts_name_the_row_that_cannot_be_understood(tmp_path: Path) -> None:
    Receipts(tmp_path / "ledger.db").close()
    with sqlite3.connect(tmp_path / "ledger.db") as database:
        database.execute("INSERT INTO receipts VALUES ('net', 'c9', 'eth0', ?)", (b'{"attachment":1}',))
    database.close()
    receipts = Receipts(tmp_path / "ledger.db")
    with pytest.raises(
        CorruptLedgerError,
        match=r"row net/c9/eth0: receipt: Expected `object`, got `int` - at `\$.attachment`",
    ):
        receipts.load()
    receipts.close()


CHANGE_OF_NOTHING = """
UPDATE receipts SET document
    = CAST(json_set(CAST(document AS TEXT), '$.change.interfaces', json('[]')) AS BLOB)
"""


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("UPDATE receipts SET container = 'c9'", "row net/c9/eth0: its document is of net/a/eth0"),
        ("UPDATE promises SET claim = 'other'", "prepared claim other: its document is of claim claim-1"),
        (CHANGE_OF_NOTHING, "row net/a/eth0: its change is of other interfaces"),
    ],
)
def test_receipts_name_the_row_that_does_not_fit_its_document(tmp_path: Path, change: str, why: str) -> None:
    """Its content could not be taken out again, or would end the agent at each start."""
    held = interface(PF0, 0)
    claim = LedgerClaim(
        uid=ClaimUid("claim-1"), namespace="default", name="c", pod=pod(), pod_claim="c", interfaces=()
    )
    with closing(Receipts(tmp_path / "ledger.db")) as receipts:
        receipts.put(replace(receipt("a", held), change=RateChange(generation=1, interfaces=(held,))))
        receipts.put_claim(claim)
    with closing(sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)) as database:
        database.execute(change)
    with pytest.raises(CorruptLedgerError, match=why):
        opened(tmp_path / "ledger.db")


def no_database(path: Path) -> None:
    path.write_bytes(b"not a database at all, but text" * 100)


def cut_off(path: Path) -> None:
    """Write many receipts as a disk leaves them that lost its last blocks."""
    receipts = Receipts(path)
    for number in range(64):
        receipts.put(receipt(f"c{number}", interface(PF0, number), ipam=IPAM))
    receipts.close()
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def scribbled_on(path: Path) -> None:
    cut_off(path)
    content = bytearray(path.read_bytes())
    content[5000:6000] = b"\xff" * 1000
    path.write_bytes(content)


@pytest.mark.parametrize("spoil", [no_database, cut_off, scribbled_on])
def test_receipts_say_how_to_go_on_when_the_file_is_corrupt(
    tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    path = tmp_path / "ledger.db"
    spoil(path)
    spoilt = path.read_bytes()
    with pytest.raises(CorruptLedgerError, match=REBUILD):
        opened(path)
    assert path.read_bytes() == spoilt


def opened(path: Path) -> Ledger:
    with closing(Receipts(path)) as receipts:
        return receipts.load()


def test_receipts_of_a_newer_program_are_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    Receipts(path).close()
    with sqlite3.connect(path) as database:
        database.execute(f"PRAGMA user_version = {VERSION + 1}")
    database.close()
    before = path.read_bytes()
    with pytest.raises(
        LedgerError, match=f"version {VERSION + 1}, and this program knows .* up to {VERSION}"
    ):
        opened(path)
    assert path.read_bytes() == before


OLDER_TABLE = """
CREATE TABLE receipts (
    container TEXT NOT NULL, ifname TEXT NOT NULL, document BLOB NOT NULL, PRIMARY KEY (container, ifname)
) STRICT, WITHOUT ROWID
"""


def older_ledger(path: Path, *documents: bytes) -> None:
    """As a program before versions wrote it."""
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute(OLDER_TABLE)
        for number, document in enumerate(documents):
            database.execute("INSERT INTO receipts VALUES (?, 'eth0', ?)", (f"c{number}", document))
    database.close()


def older(made: Receipt) -> bytes:
    """A receipt as it was then: the network's name beside the attachment, and no entries."""
    document = json.loads(encode_receipt(made))
    document["network"] = document["attachment"].pop("network")
    for each in document["interfaces"]:
        del each["entry"]
    return json.dumps(document).encode()


def test_receipts_of_a_program_before_versions_are_brought_up_to_date(tmp_path: Path) -> None:
    two = receipt("c0", interface(PF0, 1), replace(interface(PF1, 1, "rdma1"), entry=1), ipam=IPAM)
    path = tmp_path / "ledger.db"
    older_ledger(path, older(two), older(receipt("c1", interface(PF0, 2))))
    for _ in range(2):
        ledger = opened(path)
        assert ledger.receipts[two.attachment] == two
        assert {key.container for key in ledger.receipts} == {"c0", "c1"}
    with sqlite3.connect(path) as database:
        assert database.execute("PRAGMA user_version").fetchall() == [(OLDEST,)]
        assert database.execute("SELECT network FROM receipts").fetchall() == [("net",), ("net",)]
    database.close()


def test_receipts_of_an_older_program_stay_as_they_were_when_one_cannot_be_understood(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    older_ledger(path, older(receipt("c0")), b'{"network":"net"}')
    with pytest.raises(CorruptLedgerError, match=r"row c1/eth0 of an older program: .* `attachment`"):
        opened(path)
    with sqlite3.connect(path) as database:
        assert len(database.execute("SELECT container, ifname, document FROM receipts").fetchall()) == 2
        assert database.execute("PRAGMA user_version").fetchall() == [(0,)]
    database.close()


def test_program_before_versions_finds_no_empty_ledger_in_a_newer_one(tmp_path: Path) -> None:
    """It reads the rows, and fails loudly over documents whose network it does not find."""
    path = tmp_path / "ledger.db"
    with closing(Receipts(path)) as receipts:
        receipts.put(receipt("c0"))
    with sqlite3.connect(path) as database:
        [(document,)] = database.execute("SELECT document FROM receipts")
    database.close()
    assert "network" not in json.loads(document)


def test_receipts_replace_others_in_one_moment(tmp_path: Path) -> None:
    old, new = receipt("old", interface(PF0, 2)), receipt("new", interface(PF0, 2), phase=Phase.PREPARED)
    with closing(Receipts(tmp_path / "ledger.db")) as receipts:
        receipts.put(old)
        receipts.put(new, instead_of=[old.attachment])
        assert dict(receipts.load().receipts) == {new.attachment: new}


@contextmanager
def full_disk() -> Iterator[None]:
    """No file of this process may grow."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_receipts_are_as_before_when_the_disk_is_full(tmp_path: Path) -> None:
    old, new = receipt("old", interface(PF0, 2)), receipt("new", interface(PF0, 2), phase=Phase.PREPARED)
    with closing(Receipts(tmp_path / "ledger.db")) as receipts:
        receipts.put(old)
        with full_disk(), pytest.raises(LedgerError, match="cannot be written"):
            receipts.put(new, instead_of=[old.attachment])
        assert dict(receipts.load().receipts) == {old.attachment: old}
        receipts.put(new, instead_of=[old.attachment])
        assert dict(receipts.load().receipts) == {new.attachment: new}


def test_receipts_whose_file_would_take_another_version_are_read_when_the_disk_is_full(
    tmp_path: Path,
) -> None:
    path, made = tmp_path / "ledger.db", receipt("c0")
    with closing(Receipts(path)) as receipts:
        receipts.put(made)
    with sqlite3.connect(path) as database:
        database.execute(f"PRAGMA user_version = {VERSION}")
    database.close()
    with full_disk():
        assert opened(path).receipts == {made.attachment: made}


TRACED = """
from pathlib import Path
from dataclasses import replace
from factories import receipt
from k8s_rdma.core.ledger import Phase, RateChange
from k8s_rdma.core.devices.pod_devices import SlotInUse
from k8s_rdma.linux.receipts import Receipts
receipts = Receipts(Path("ledger.db"))
receipts.put(receipt("warm", phase=Phase.PREPARED))
receipts.remove(receipt("warm").attachment)
print("begin", flush=True)
receipts.put(receipt("a", phase=Phase.PREPARED))
print("claimed", flush=True)
receipts.put(receipt("a", phase=Phase.ATTACHED))
print("attached", flush=True)
receipts.put(receipt("a", change=RateChange(generation=1, interfaces=())))
print("changing", flush=True)
receipts.put(receipt("a", generation=1))
receipts.put(receipt("a", phase=Phase.RELEASING))
receipts.remove(receipt("a").attachment)
print("end", flush=True)
"""


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_only_new_receipts_and_the_beginning_of_a_change_are_synced_and_once(tmp_path: Path) -> None:
    log = tmp_path / "strace.log"
    command = [
        "strace",
        "-f",
        "-e",
        "trace=fsync,fdatasync,write",
        "-o",
        str(log),
        sys.executable,
        "-c",
        TRACED,
    ]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    traced = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    if "PTRACE" in traced.stderr:
        pytest.skip(f"may not trace here: {traced.stderr.strip()}")
    assert traced.returncode == 0, traced.stderr
    _, _, rest = log.read_text().partition('"begin')
    counts = [part.count("sync(") for part in re.split('"(?:claimed|attached|changing|end)', rest)]
    assert counts[:4] == [1, 0, 1, 0]


def test_receipts_of_a_program_without_slots_have_no_slots(tmp_path: Path) -> None:
    path, made = tmp_path / "ledger.db", receipt("c0", interface(PF0, 1))
    with closing(Receipts(path)) as receipts:
        receipts.put(made)
    document = json.loads(encode_receipt(made))
    del document["slots"]
    with sqlite3.connect(path) as database:
        database.execute("UPDATE receipts SET document = ?", (json.dumps(document).encode(),))
        database.execute("PRAGMA user_version = 2")
    database.close()
    assert opened(path).receipts == {made.attachment: made}
    with sqlite3.connect(path) as database:
        assert database.execute("PRAGMA user_version").fetchall() == [(OLDEST,)]
    database.close()


def test_receipts_of_a_program_without_software_caps_have_no_such_caps(tmp_path: Path) -> None:
    path, made = tmp_path / "ledger.db", receipt("c0", interface(PF0, 1, "rdma0", 5, 9))
    with closing(Receipts(path)) as receipts:
        receipts.put(made)
    document = json.loads(encode_receipt(made))
    del document["interfaces"][0]["software_max_tx_rate_mbps"]
    with sqlite3.connect(path) as database:
        database.execute("UPDATE receipts SET document = ?", (json.dumps(document).encode(),))
        database.execute("PRAGMA user_version = 3")
    database.close()
    [found] = opened(path).receipts.values()
    assert found == made
    assert found.interfaces[0].software_max_tx_rate_mbps == 0
    with sqlite3.connect(path) as database:
        assert database.execute("PRAGMA user_version").fetchall() == [(OLDEST,)]
    database.close()


def test_receipts_keep_caps_of_software_in_a_file_that_older_programs_refuse(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    capped = replace(interface(PF0, 1, "rdma0"), software_max_tx_rate_mbps=9, enforce=Enforce.SOFTWARE)
    made = receipt("c0", capped)
    with closing(Receipts(path)) as receipts:
        receipts.put(made)
    assert opened(path).receipts == {made.attachment: made}
    with sqlite3.connect(path) as database:
        [(version,)] = database.execute("PRAGMA user_version").fetchall()
    database.close()
    knew_none = 3
    assert version > knew_none


def test_receipts_keep_slots_and_the_former_holder_loses_one_in_the_same_write(tmp_path: Path) -> None:
    path, slot = tmp_path / "ledger.db", SlotInUse(resource="k8s-rdma.io/slot", id="slot-0", hints=True)
    old = replace(receipt("old", interface(PF0, 1)), slots=(slot,))
    new = replace(receipt("new", interface(PF0, 2), phase=Phase.PREPARED), slots=(slot,))
    with closing(Receipts(path)) as receipts:
        receipts.put(old)
        [loser] = receipts.load().losing_slots(new)
        receipts.put(new, loser)
    found = opened(path).receipts
    assert (found[old.attachment].slots, found[new.attachment].slots) == ((), (slot,))
