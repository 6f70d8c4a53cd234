"""One PF made ready: its VFs made, configured, given to their driver, named.

The order is the one that every driver takes: no driver on the VFs until the PF is up, has its link, and has
been told the VFs' addresses, since a VF's driver asks for those once, when it is bound. (igbvf, bound to a VF
of a PF without link, takes a random MAC, or ten seconds until it has a link of its own.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.init.binding import bind, wait_for_link, wait_for_netdevs
from k8s_rdma.init.configuring import Configuration
from k8s_rdma.init.decision import Refused, decide, who_uses
from k8s_rdma.init.done import Done
from k8s_rdma.init.making import let_probe, make_vfs, probing_restored
from k8s_rdma.init.naming import name_netdevs
from k8s_rdma.init.users import used_vfs
from k8s_rdma.linux.vf.creation import NetdevsOf

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from k8s_rdma.init.job import Job
    from k8s_rdma.init.users import Pods
    from k8s_rdma.linux.vf.creation import VfFunction


class PfSetup:
    """The way of one PF; a second try goes on where the first one ended."""

    def __init__(self, job: Job, pods: Pods) -> None:
        """Look who uses its VFs. What becomes of them afterwards is our own doing."""
        self._job = job
        vfs = job.sriov.vfs()
        self.before = len(vfs)
        self.done = Done()
        self._used: Mapping[int, str] = used_vfs(job.target.pci, vfs, pods, job.links)
        self._waited_for: set[int] = set()

    def attempt(self) -> Refused | None:
        """Make it ready. SetupError, another KernelError or OSError when something stands against that."""
        job = self._job
        now = job.sriov.count()
        count = decide(asked=job.target.rule.num_vfs, total=job.sriov.total(), now=now, used=self._used)
        if isinstance(count, Refused):
            return count
        with probing_restored(job):
            if count != now:
                make_vfs(job, now, count)
                self.done.made = count
            self._ready()
        return None

    def _ready(self) -> None:
        job = self._job
        self._bring_up()
        vfs = self._with_netdevs([vf for vf in job.sriov.vfs() if vf.index not in self._used])
        if any(not vf.driver for vf in vfs):
            wait_for_link(job)
        configuration = Configuration(job, vfs)
        settings = configuration.apply()
        self.done.settings += settings
        if settings:
            job.log.info("vfs_configured", settings=settings)
        stale = configuration.stale(self._addresses(vfs))
        bound = self._bind([vf for vf in vfs if not vf.netdevs or vf.index in stale])
        self.done.notes = self._notes(configuration)
        if settings or bound:
            configuration.check(self._addresses(bound))
        if job.config.name_vfs:
            self.done.named += name_netdevs(job, bound)

    def _bring_up(self) -> None:
        link = self._job.link()
        if not link.up:
            self._job.links.bring_up(link)
            self.done.brought_up = True

    def _with_netdevs(self, vfs: Sequence[VfFunction]) -> Sequence[VfFunction]:
        """These VFs, once drivers had time to make missing netdevs; next time those are bound anew."""
        slow = [vf for vf in vfs if vf.driver and not vf.netdevs and vf.index not in self._waited_for]
        if not slow:
            return vfs
        self._waited_for |= {vf.index for vf in slow}
        wait_for_netdevs(self._job, slow, {})
        return [self._job.sriov.again(vf) for vf in vfs]

    def _bind(self, vfs: Sequence[VfFunction]) -> Sequence[VfFunction]:
        """Those VFs with their new netdevs."""
        if not vfs:
            return ()
        job = self._job
        self._waited_for |= {vf.index for vf in vfs}
        let_probe(job, True)
        bound = wait_for_netdevs(job, vfs, bind(job, vfs))
        self.done.bound += len(bound)
        job.log.info("vfs_bound", vfs=len(bound))
        return bound

    def _addresses(self, vfs: Sequence[VfFunction]) -> dict[int, str]:
        """The hardware addresses of netdevs by VF."""
        links = NetdevsOf(self._job.links.links())
        return {vf.index: link.mac for vf in vfs for link in links.of(vf)}

    def _notes(self, configuration: Configuration) -> tuple[str, ...]:
        notes = []
        if self._used:
            notes.append(f"used, and left as they are: {who_uses(self._used)}")
        notes += [
            f"its driver sets no {kind} on VFs, which keep what it gives them"
            for kind in sorted(configuration.unsupported)
        ]
        return tuple(notes)
