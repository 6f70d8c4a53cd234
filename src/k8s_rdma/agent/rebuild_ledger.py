"""`k8s-rdma agent --rebuild-ledger`: the old file aside, a new one in its place."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from k8s_rdma.agent.calls.wanted import Policy
from k8s_rdma.agent.config import load_device_plugin
from k8s_rdma.agent.rebuild import Outcome, Rebuild
from k8s_rdma.agent.run import BOOT_ID, open_holdings, open_kernel, open_left_deletions
from k8s_rdma.config.placement_keys import agent_keys
from k8s_rdma.core.ids import NodeName
from k8s_rdma.core.ledger import Ledger
from k8s_rdma.errors import K8sRdmaError, LedgerError, MalformedError, printable
from k8s_rdma.linux.netns import Namespaces
from k8s_rdma.linux.rdma.character_devices import PodNodes
from k8s_rdma.linux.receipts import CorruptLedgerError, Receipts
from k8s_rdma.wire.cni_cache import decode_cached

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from k8s_rdma.agent.calls.held_devices import Holdings
    from k8s_rdma.agent.config import AgentConfig
    from k8s_rdma.agent.left_deletions import LeftDeletions
    from k8s_rdma.core.devices.pod_devices import SlotHeld
    from k8s_rdma.wire.cni_cache import CachedAttachment


def rebuild_ledger(config: AgentConfig) -> tuple[Outcome, ...]:
    """Make a new ledger of what kernel and runtime know; what became of each attachment.

    LedgerError when there is nothing to make anew, or an agent runs; then nothing has changed.
    """
    _require_no_agent(Path(config.run_dir) / "cni.sock")
    ledger = Path(config.state_dir) / "ledger.db"
    _require_spoilt(ledger)
    namespaces = Namespaces(Path(config.host_root))
    caches = _caches(config, namespaces)
    keys, plugin = agent_keys(config.placement_key_file), load_device_plugin(config)
    unreadable: list[Outcome] = []
    slots = asyncio.run(_slots(open_holdings(config, plugin), unreadable))
    with closing(open_kernel(config, namespaces, Ledger())) as kernel:
        rebuild = Rebuild(
            node=NodeName(config.node),
            kernel=kernel,
            namespaces=namespaces,
            policy=Policy(keys=keys, strict=config.strict, allow_unplaced=True),
            boot_id=BOOT_ID.read_text().strip(),
            cni_path=config.cni_path,
            pools=plugin.pools() if plugin else (),
            slots=slots,
            rdma_device=PodNodes().rdma_device,
        )
        outcomes = (*rebuild.attachments(_cached(caches, unreadable)), *rebuild.strays())
    _replace(ledger, rebuild.ledger)
    return (*outcomes, *_ended(open_left_deletions(config), rebuild.ledger), *unreadable)


def _ended(left: LeftDeletions, rebuilt: Ledger) -> Iterator[Outcome]:
    """Attachments whose DEL found no agent, and of which the runtime keeps nothing any more."""
    for name in sorted(left.of_others(rebuilt.receipts)):
        said = "ended while no agent answered, and what it had is not known: its addresses stay leased"
        yield Outcome(what=printable(name), said=said, complete=False)


async def _slots(
    holdings: Holdings, unreadable: list[Outcome]
) -> Mapping[tuple[str, str], tuple[SlotHeld, ...]]:
    """What pods hold now; without kubelet nothing, which is told of."""
    try:
        return {pod: held.slots for pod, held in (await holdings.of_all()).items()}
    except K8sRdmaError as error:
        said = f"not known, so that containers of now are not made again: {error}"
        unreadable.append(Outcome(what="slots", said=said, complete=False))
        return {}
    finally:
        await holdings.close()


def _require_no_agent(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as agent:
        agent.settimeout(1)
        with suppress(FileNotFoundError, ConnectionRefusedError):
            agent.connect(str(path))
            msg = f"an agent is running: it listens at {path}; stop it first"
            raise LedgerError(msg)


def _require_spoilt(ledger: Path) -> None:
    """LedgerError unless the file is lost, empty or corrupt; what a newer program wrote is neither."""
    if not ledger.exists() or not ledger.stat().st_size:
        return
    with suppress(CorruptLedgerError), closing(Receipts(ledger)) as receipts:
        held = len(receipts.load().receipts)
        msg = f"ledger {ledger}: in order, with {held} attachments; start the agent"
        raise LedgerError(msg)


def _caches(config: AgentConfig, namespaces: Namespaces) -> tuple[Path, ...]:
    """LedgerError when none is there: a ledger made of nothing would be in order from then on."""
    named = [namespaces.on_host(cache) for cache in config.cni_cache_dirs]
    if there := tuple(cache for cache in named if cache.is_dir()):
        return there
    msg = (
        f"cniCacheDirs: none is there ({', '.join(map(str, named))}), so that no attachment would be found; "
        "name the container runtime's (is the node's root file system at hostRoot?), or make an empty one if "
        "no pod runs here"
    )
    raise LedgerError(msg)


def _cached(directories: Iterable[Path], unreadable: list[Outcome]) -> Iterator[CachedAttachment]:
    """The runtime's attachments, the oldest first; files that are none are told of and passed over."""
    files = [path for directory in directories for path in directory.iterdir()]
    for path in sorted(files, key=lambda path: path.stat().st_mtime_ns):
        try:
            yield decode_cached(path.read_bytes())
        except (MalformedError, OSError) as error:
            unreadable.append(Outcome(what=path.name, said=f"cannot be read: {error}", complete=False))


def _replace(ledger: Path, rebuilt: Ledger) -> None:
    """The new file is whole before the old one moves; a crash in between leaves one of them."""
    draft = ledger.with_name("ledger.db.rebuilt")
    for suffix in ("", "-wal", "-shm"):
        draft.with_name(draft.name + suffix).unlink(missing_ok=True)
    with closing(Receipts(draft)) as receipts:
        for receipt in rebuilt.receipts.values():
            receipts.put(receipt)
    aside = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    for suffix in ("-wal", "-shm", ""):
        old = ledger.with_name(ledger.name + suffix)
        if old.exists():
            old.rename(ledger.with_name(f"ledger.db.spoilt-{aside}{suffix}"))
    draft.rename(ledger)
