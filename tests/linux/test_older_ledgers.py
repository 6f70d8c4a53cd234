"""Ledgers that agents of before left, as they were when these were killed; see `recordings/ledgers`."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from factories import PF0, interface, pod, receipt
from k8s_rdma.core.inventory import CLAIMS_POOL
from k8s_rdma.core.ledger import (
    ClaimUid,
    Ledger,
    LedgerClaim,
    Phase,
    PreparedInterface,
    RateChange,
)
from k8s_rdma.core.placement import PlacedInterface
from k8s_rdma.core.step import VfRef
from k8s_rdma.core.types import Enforce
from k8s_rdma.linux.receipts import OLDEST, VERSION, CorruptLedgerError, Receipts, encode_receipt

if TYPE_CHECKING:
    from collections.abc import Iterator


RECORDINGS = Path(__file__).parents[1] / "recordings" / "ledgers"
RECORDED = sorted(RECORDINGS.glob("*.json"))
MOMENTS_S = [0.002 * number**2 for number in range(5)]
Json = dict[str, Any]
WITH_CAPS, WITH_PROMISES = 4, 5


@pytest.fixture(params=RECORDED, ids=lambda path: path.stem)
def recorded(request: pytest.FixtureRequest) -> Json:
    return json.loads(request.param.read_text())


@pytest.fixture
def ledger(recorded: Json, tmp_path: Path) -> Path:
    return restored(recorded, tmp_path / "ledger.db")


def restored(recorded: Json, path: Path) -> Path:
    """The file as it was."""
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute(recorded["table"])
        for row in recorded["rows"]:
            document = json.dumps(row["document"], separators=(",", ":"), ensure_ascii=False).encode()
            marks = ", ".join("?" * len(row))  # the columns are in the table's order
            db.execute(f"INSERT INTO receipts VALUES ({marks})", [*(row | {"document": document}).values()])  # noqa: S608
        db.execute(f"PRAGMA user_version = {recorded['user_version']}")
    return path


def opened(path: Path) -> Ledger:
    with closing(Receipts(path)) as receipts:
        return receipts.load()


def version(path: Path) -> int:
    with closing(sqlite3.connect(path)) as db:
        [(found,)] = db.execute("PRAGMA user_version")
    return found


def have_version(path: Path, number: int) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA user_version = {number}")


def of_now(document: Json) -> Json:
    """The document in the words of now: the network's name has moved, and interfaces are numbered."""
    if "network" not in document:
        return document
    moved = {key: value for key, value in document.items() if key != "network"}
    moved["attachment"] = document["attachment"] | {"network": document["network"]}
    moved["interfaces"] = [{"entry": entry, **each} for entry, each in enumerate(document["interfaces"])]
    return moved


def differences(older: object, newer: object, where: str = "") -> Iterator[str]:
    """Whatever an older document says that a newer one does not."""
    if isinstance(older, dict) and isinstance(newer, dict):
        for key, value in older.items():
            yield from differences(value, newer.get(key, "nothing"), f"{where}.{key}")
    elif isinstance(older, list) and isinstance(newer, list) and len(older) == len(newer):
        for number, values in enumerate(zip(older, newer, strict=True)):
            yield from differences(*values, f"{where}[{number}]")
    elif older != newer:
        yield f"{where}: {older} is {newer}"


def test_recordings_are_of_every_form_there_was() -> None:
    versions = {json.loads(path.read_text())["user_version"] for path in RECORDED}
    assert versions == {0, 2, 3, WITH_CAPS}


def test_ledger_of_an_older_agent_is_read_with_all_that_it_says(recorded: Json, ledger: Path) -> None:
    found = {
        each.attachment.container: json.loads(encode_receipt(each))
        for each in opened(ledger).receipts.values()
    }
    assert len(found) == len(recorded["rows"])
    for row in recorded["rows"]:
        assert list(differences(of_now(row["document"]), found[row["container"]])) == []


def test_ledger_of_an_older_agent_has_the_interfaces_of_its_pods(recorded: Json, ledger: Path) -> None:
    receipts = {each.pod.name: each for each in opened(ledger).receipts.values()}
    assert receipts.keys() == {"p", "q"}
    assert {each.phase for each in receipts.values()} == {Phase.ATTACHED}
    assert {each.network for each in receipts.values()} == {"net"}
    given = {
        pod: [
            (each.entry, each.ifname, each.min_tx_rate_mbps, each.max_tx_rate_mbps)
            for each in found.interfaces
        ]
        for pod, found in receipts.items()
    }
    assert given == {
        "p": [(0, "eth0", 100, 200)],
        "q": [(0, "rdma0", 50, 0), (1, "rdma1", 0, 300), (2, "rdma2", 0, 0)],
    }
    assert len({each.vf for found in receipts.values() for each in found.interfaces}) == 4
    assert {each.ipam.plugin for each in receipts.values()} == {"host-local"}
    slots = {pod: [each.id for each in found.slots] for pod, found in receipts.items()}
    assert slots == {"p": ["slot-3"] if recorded["user_version"] >= 3 else [], "q": []}
    caps = [each.software_max_tx_rate_mbps for each in receipts["q"].interfaces]
    assert caps == [0, 300 if recorded["user_version"] >= 4 else 0, 0]


def test_ledger_of_an_older_agent_stays_one_that_older_agents_take(recorded: Json, ledger: Path) -> None:
    kept = opened(ledger)
    assert version(ledger) == max(recorded["user_version"], OLDEST)
    assert opened(ledger) == kept


def test_file_has_the_version_of_its_content(tmp_path: Path) -> None:
    path, plain = tmp_path / "ledger.db", receipt("plain", interface(PF0, 1))
    capped = receipt("capped", replace(interface(PF0, 2), software_max_tx_rate_mbps=9))
    with closing(Receipts(path)) as receipts:
        receipts.put(plain)
    assert version(path) == OLDEST
    with closing(Receipts(path)) as receipts:
        receipts.put(capped)
        receipts.put(replace(plain, phase=Phase.RELEASING))
        receipts.remove(plain.attachment)
    assert version(path) == WITH_CAPS
    with closing(Receipts(path)) as receipts:
        receipts.remove(capped.attachment)
    assert version(path) == OLDEST


def test_file_of_a_newer_version_than_it_needs_has_the_older_one_once_it_was_opened(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with closing(Receipts(path)) as receipts:
        receipts.put(receipt("plain"))
    have_version(path, VERSION)
    assert len(opened(path).receipts) == 1
    assert version(path) == OLDEST


def test_row_that_keeps_the_version_from_being_known_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with closing(Receipts(path)) as receipts:
        receipts.put(receipt("plain"))
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE receipts SET document = ?", (b'{"attachment":1}',))
    have_version(path, VERSION)
    with pytest.raises(CorruptLedgerError, match="row net/plain/eth0: "):
        opened(path)
    assert version(path) == VERSION


def test_file_has_the_older_version_once_a_claim_replaces_the_newer_content(
    tmp_path: Path,
) -> None:
    path = tmp_path / "ledger.db"
    capped = receipt("capped", replace(interface(PF0, 1), software_max_tx_rate_mbps=9))
    plain = receipt("plain", interface(PF0, 1), phase=Phase.PREPARED)
    with closing(Receipts(path)) as receipts:
        receipts.put(capped)
        receipts.put(plain, instead_of=[capped.attachment])
    assert version(path) == OLDEST
    with closing(Receipts(path)) as receipts:
        receipts.put(capped, instead_of=[plain.attachment])
    assert version(path) == WITH_CAPS


def test_file_with_prepared_claims_has_a_version_that_older_programs_refuse(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    placed = PlacedInterface(pf=PF0, min_tx_rate_mbps=9, pool=CLAIMS_POOL)
    claim = LedgerClaim(
        uid=ClaimUid("u1"),
        namespace="default",
        name="c",
        pod=pod(),
        pod_claim="net",
        interfaces=(
            PreparedInterface(
                request="a", device="f0", share_id="s", vf=VfRef(PF0, 1), pci=PF0, placed=placed
            ),
        ),
    )
    with closing(Receipts(path)) as receipts:
        receipts.put(receipt("capped", replace(interface(PF0, 2), software_max_tx_rate_mbps=9)))
        receipts.put_claim(claim)
        receipts.remove(receipt("capped").attachment)
    assert version(path) == WITH_PROMISES
    assert opened(path) == Ledger().with_claim(claim)
    with closing(Receipts(path)) as receipts:
        receipts.remove_claim(claim.uid)
    assert version(path) == OLDEST
    assert opened(path) == Ledger()


@pytest.mark.parametrize(
    "of_change",
    [{"generation": 1}, {"change": RateChange(generation=1, interfaces=(interface(PF0, 1),))}],
)
def test_file_with_changed_rates_is_of_a_version_that_older_programs_refuse(
    tmp_path: Path, of_change: dict[str, Any]
) -> None:
    path, plain = tmp_path / "ledger.db", receipt("plain", interface(PF0, 1))
    with closing(Receipts(path)) as receipts:
        receipts.put(plain)
        receipts.put(replace(plain, **of_change))
        receipts.put(receipt("other", interface(PF0, 2)))
    assert version(path) == VERSION
    assert opened(path).receipts[plain.attachment] == replace(plain, **of_change)
    with closing(Receipts(path)) as receipts:
        receipts.remove(plain.attachment)
    assert version(path) == OLDEST


def test_receipt_with_newer_content_is_refused_by_older_programs(tmp_path: Path) -> None:
    """They know no such word, and would take the row for a broken one."""
    path = tmp_path / "ledger.db"
    with closing(Receipts(path)) as receipts:
        receipts.put(receipt("c0", replace(interface(PF0, 1), enforce=Enforce.SOFTWARE)))
    assert version(path) == WITH_CAPS


def test_file_is_of_the_newer_version_when_a_slot_goes_over_to_a_pod_with_a_newer_receipt(
    tmp_path: Path,
) -> None:
    path, plain = tmp_path / "ledger.db", receipt("plain", interface(PF0, 1))
    capped = receipt("capped", replace(interface(PF0, 2), software_max_tx_rate_mbps=9))
    with closing(Receipts(path)) as receipts:
        receipts.put(plain, capped)
    assert version(path) == WITH_CAPS


def test_ledger_whose_change_of_version_cannot_be_understood_stays_as_it_was(
    recorded: Json, tmp_path: Path
) -> None:
    recorded["rows"][1]["document"] = {"attachment": 1}
    path = restored(recorded, tmp_path / "ledger.db")
    with pytest.raises(CorruptLedgerError):
        opened(path)
    assert version(path) == recorded["user_version"]
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT count(*) FROM receipts").fetchall() == [(2,)]


BRING_UP_TO_DATE = """
import sys
from pathlib import Path
from k8s_rdma.linux.receipts import Receipts
print("begin", flush=True)
Receipts(Path(sys.argv[1]))
"""


def test_ledger_is_whole_when_the_program_that_brings_it_up_to_date_is_killed(tmp_path: Path) -> None:
    of_then = json.loads((RECORDINGS / "0.json").read_text())
    row = of_then["rows"][0]
    of_then["rows"] = [_another(row, number) for number in range(200)]
    for number, moment_s in enumerate(MOMENTS_S):
        path = restored(of_then, tmp_path / f"ledger{number}.db")
        with subprocess.Popen(
            [sys.executable, "-c", BRING_UP_TO_DATE, path], stdout=subprocess.PIPE
        ) as program:
            program.stdout.readline()
            with suppress(subprocess.TimeoutExpired):
                program.wait(moment_s)
            program.send_signal(signal.SIGKILL)
        assert version(path) in {of_then["user_version"], OLDEST}
        assert len(opened(path).receipts) == 200


def _another(row: Json, number: int) -> Json:
    """The same for another container and other VFs."""
    document = json.loads(json.dumps(row["document"]))
    document["attachment"]["container"] = f"c{number}"
    for each in document["interfaces"]:
        each["vf"]["index"] = number
    return row | {"container": f"c{number}", "document": document}
