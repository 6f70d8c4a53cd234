"""Records the ledger that an agent of before left when it was killed, with pods that it had given VFs.

    scripts/isolated scripts/run python tests/recordings/ledgers/record.py NAME COMMIT

The commit's own agent, executable, node and runtime do it; only Python and its packages are of now.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

HERE = Path(__file__).parent
VFS = 4


def main() -> None:
    name, commit = sys.argv[1:]
    sys.path.insert(0, str(HERE.parents[1]))
    from older_programs import unpack  # noqa: PLC0415  absent beside the tests of then

    # Paths are part of the record.
    with tempfile.TemporaryDirectory(prefix="k8srdma-", dir="/run") as directory:
        place = unpack(commit, Path(directory), "src", "tests", "cni")
        made = ["make", "--silent", f"--directory={place / 'cni'}", f"BUILD={place / 'build'}"]
        subprocess.run(made, check=True)
        environment = os.environ | {
            "PYTHONPATH": f"{place}/src:{place}/tests",
            "TMPDIR": directory,
            "CNI_PATH": "/opt/cni/bin:/usr/lib/cni",
        }
        subprocess.run(
            [sys.executable, __file__, "--of-then", place, HERE / f"{name}.json"], env=environment, check=True
        )


def of_then(place: Path, record: Path) -> None:
    """With the modules of then on the path."""
    from e2e.conftest import PLUGINS  # noqa: PLC0415
    from e2e.node import Node  # noqa: PLC0415

    with Node(vfs=VFS, plugins=PLUGINS, shim=place / "build" / "k8s-rdma-cni") as node:
        asyncio.run(live(node))
        record.write_text(json.dumps(read(node.directory / "state" / "ledger.db"), indent=1) + "\n")


async def live(node) -> None:
    """Pods as that agent can serve them; kubelet reports a slot if the agent asks for one."""
    from e2e.node import pod  # noqa: PLC0415
    from k8s_rdma.core.types import Enforce  # noqa: PLC0415

    by_software = {"enforce": "software"} if hasattr(Enforce, "SOFTWARE") else {}
    try:
        from e2e.test_rebuild_ledger import kubelet_with_slot  # noqa: PLC0415
    except ImportError:
        kubelet_with_slot = None
    wishes = {
        "q": [{"min_tx_rate": 50}, {"max_tx_rate": 300, **by_software}, {}],
        "p": [{"min_tx_rate": 100, "max_tx_rate": 200}],
    }
    if kubelet_with_slot is None:
        node.start_agent()
        await add(node, {name: pod(name, *wish) for name, wish in wishes.items()})
    else:
        plugin, kubelet = (node.directory / name for name in ("plugin.yaml", "kubelet.sock"))
        plugin.write_text(json.dumps({"podResources": str(kubelet), "resources": [{"mode": "exact"}]}))
        node.settings = {"devicePlugin": str(plugin), "cdiDir": str(node.directory / "cdi")}
        node.start_agent()
        async with kubelet_with_slot(kubelet):
            await add(node, {name: pod(name, *wish) for name, wish in wishes.items()})
    node.kill_agent()


async def add(node, pods) -> None:
    for name, each in pods.items():
        await node.runtime(chained=name == "q").add(each)


def read(ledger: Path) -> dict[str, object]:
    """The file as it is: version, tables, rows; a document is kept decoded, without a loss."""
    with closing(sqlite3.connect(ledger)) as db:
        [(version,)] = db.execute("PRAGMA user_version")
        [(table,)] = db.execute("SELECT sql FROM sqlite_schema WHERE name = 'receipts'")
        cursor = db.execute("SELECT * FROM receipts")
        columns = [each[0] for each in cursor.description]
        rows = [dict(zip(columns, row, strict=True)) for row in cursor]
    for row in rows:
        written = row["document"]
        row["document"] = json.loads(written)
        assert json.dumps(row["document"], separators=(",", ":"), ensure_ascii=False).encode() == written
    return {"user_version": version, "table": table, "rows": rows}


if __name__ == "__main__":
    if sys.argv[1] == "--of-then":
        of_then(*map(Path, sys.argv[2:]))
    else:
        main()
