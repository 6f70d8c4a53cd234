"""One PF made ready: its VFs made, configured, given to their driver, named.

The order is the one that every driver takes: no driver on the VFs until the PF is up, has its link, and has
been told the VFs' addresses, since a VF's driver asks for those once, when it is bound. (igbvf, bound to a VF
of a PF without link, takes a random MAC, or ten seconds until it has a link of its own.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.init.binding import bind, wait_for_link, wait_for_netdevs
from k8s_rdma.init.configuring import Configuration
from k8s_rdma.init.decision import Refused, decide, who_uses
from k8s_rdma.init.making import let_probe, make_vfs, probing_restored
from k8s_rdma.init.naming import name_netdevs
from k8s_rdma.init.users import used_vfs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from k8s_rdma.init.job import Job
    from k8s_rdma.init.users import Pods
    from k8s_rdma.linux.sriov import VfFunction


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What was done on a PF.

    made: VFs that there are since, None when their number is that of before. settings: on VFs. bound: VFs
    given to their driver. named: netdevs.
    notes: one sentence each.
    """

    made: int | None = None
    settings: int = 0
    bound: int = 0
    named: int = 0
    brought_up: bool = False
    notes: tuple[str, ...] = ()

    @property
    def changed(self) -> bool:
        """Whether anything is other than before."""
        return bool(self.made is not None or self.settings or self.bound or self.named or self.brought_up)

    def words(self) -> str:
        """`7 made, 7 bound`, and the notes."""
        counts = (
            ("made", self.made),
            ("settings", self.settings),
            ("bound", self.bound),
            ("named", self.named),
        )
        done = [f"{count} {what}" for what, count in counts if count]
        if self.made == 0:
            done.append("all removed")
        if self.brought_up:
            done.append("PF up")
        return "; ".join([*filter(None, [", ".join(done)]), *self.notes])


class PfSetup:
    """The way of one PF; a second try goes on where the first one ended."""

    def __init__(self, job: Job, pods: Pods) -> None:
        """Look who uses its VFs. What becomes of them afterwards is our own doing."""
        self._job = job
        vfs = job.sriov.vfs()
        self.before = len(vfs)
        self._used: Mapping[int, str] = used_vfs(job.target.pci, vfs, pods, job.links)
        self._waited_for: set[int] = set()

    def attempt(self) -> Done | Refused:
        """Make it ready. SetupError or another KernelError when something stands against that."""
        job = self._job
        now = job.sriov.count()
        count = decide(asked=job.target.rule.num_vfs, total=job.sriov.total(), now=now, used=self._used)
        if isinstance(count, Refused):
            return count
        with probing_restored(job):
            if count != now:
                make_vfs(job, now, count)
            return self._ready(made=count if count != now else None)

    def _ready(self, made: int | None) -> Done:
        job = self._job
        vfs = [vf for vf in job.sriov.vfs() if vf.index not in self._used]
        brought_up = self._bring_up()
        if any(not vf.driver for vf in vfs):
            wait_for_link(job)
        configuration = Configuration(job, vfs)
        settings = configuration.apply()
        if settings:
            job.log.info("vfs_configured", settings=settings)
        stale = configuration.stale(self._addresses(vfs))
        bound = self._bind(vfs, stale)
        named = name_netdevs(job, bound) if job.config.name_vfs else 0
        if settings or bound:
            configuration.check(self._addresses(bound))
        return Done(
            made=made,
            settings=settings,
            bound=len(bound),
            named=named,
            brought_up=brought_up,
            notes=self._notes(configuration),
        )

    def _bring_up(self) -> bool:
        link = self._job.link()
        if link.up:
            return False
        self._job.links.bring_up(link)
        return True

    def _bind(self, vfs: Sequence[VfFunction], stale: set[int]) -> Sequence[VfFunction]:
        """Those VFs that got their driver now, with their netdevs.

        One that has its driver and no netdev is given time once, and bound anew in the next try.
        """
        job = self._job
        slow = [vf for vf in vfs if vf.driver and not vf.netdevs and vf.index not in self._waited_for]
        bound = [vf for vf in vfs if vf not in slow and (not vf.netdevs or vf.index in stale)]
        failed = {}
        if bound:
            let_probe(job, True)
            failed = bind(job, bound)
        if slow or bound:
            self._waited_for |= {vf.index for vf in (*slow, *bound)}
            ready = wait_for_netdevs(job, [*bound, *slow], failed)
            job.log.info("vfs_bound", vfs=len(bound))
            return ready[: len(bound)]
        return ()

    def _addresses(self, vfs: Sequence[VfFunction]) -> dict[int, str]:
        """The hardware addresses of netdevs by VF."""
        by_name = {link.name: link.mac for link in self._job.links.links()}
        return {vf.index: by_name[name] for vf in vfs for name in vf.netdevs or () if name in by_name}

    def _notes(self, configuration: Configuration) -> tuple[str, ...]:
        notes = []
        if self._used:
            notes.append(f"used, and left as they are: {who_uses(self._used)}")
        notes += [
            f"its driver sets no {kind} on VFs, so that theirs may change with every boot"
            for kind in configuration.unsupported
        ]
        return tuple(notes)
