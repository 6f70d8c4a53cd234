"""Facts of `scheduler`: in order, and for each kind of finding."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from k8s_rdma.config.extender import ExtenderConfig
from k8s_rdma.doctor.cluster.scheduler import SchedulerFacts, SchedulerFile, check_scheduler

if TYPE_CHECKING:
    from k8s_rdma.doctor.finding import Finding


ROOT = Path(__file__).parents[3]
SCHEDULERS = ROOT / "examples" / "scheduler"
RECOMMENDED = yaml.safe_load((SCHEDULERS / "recommended.yaml").read_text())
DEFAULTS = ExtenderConfig()


def scheduler_text(text: str | None, config: ExtenderConfig = DEFAULTS, **more: Any) -> list[Finding]:
    file = SchedulerFile(location="/etc/kubernetes/scheduler.yaml", text=text, **more)
    return list(check_scheduler(SchedulerFacts(files=(file,), extender=config)))


OURS = RECOMMENDED["extenders"][0]
GPU_SHARE = {
    "urlPrefix": "http://127.0.0.1:32766/gpushare-scheduler",
    "filterVerb": "filter",
    "bindVerb": "bind",
    "nodeCacheCapable": True,
    "managedResources": [{"name": "aliyun.com/gpu-mem", "ignoredByScheduler": False}],
}
"""An entry as another extender's documents have it."""


ALSO_OURS = {"managedResources": [{"name": "k8s-rdma.io/slot"}]}
SECOND = SchedulerFile(
    location="ConfigMap k8s-rdma/k8s-rdma-extender, scheduler.yaml",
    text=(SCHEDULERS / "second-scheduler.yaml").read_text(),
)


def beside_second(text: str | None, **more: Any) -> list[Finding]:
    """A first scheduler, beside a second one that asks the extender."""
    first = SchedulerFile(location="/etc/kubernetes/scheduler.yaml", text=text, **more)
    return list(check_scheduler(SchedulerFacts(files=(first, SECOND), extender=DEFAULTS)))


def registered(config: ExtenderConfig = DEFAULTS, **keys: Any) -> list[Finding]:
    """Return findings on the recommended entry with other keys; None takes one out."""
    entry = {key: value for key, value in (RECOMMENDED["extenders"][0] | keys).items() if value is not None}
    return scheduler_text(yaml.safe_dump(RECOMMENDED | {"extenders": [entry]}), config)


IN_ORDER = registered()

CASES = {
    "scheduler-not-seen": list(check_scheduler(SchedulerFacts(files=(), extender=DEFAULTS))),
    "scheduler-unreadable": scheduler_text("kind: Pod"),
    "scheduler-no-configuration": scheduler_text(None, unset=True),
    "scheduler-old-api": scheduler_text(
        yaml.safe_dump(RECOMMENDED | {"apiVersion": "kubescheduler.config.k8s.io/v1beta3"})
    ),
    "scheduler-no-extender": registered(urlPrefix="http://127.0.0.1:9999/other"),
    "scheduler-not-asking": beside_second(None, unset=True),
    "scheduler-wrong-path": registered(filterVerb="filter"),
    "scheduler-no-filter": registered(filterVerb=None),
    "scheduler-no-bind": registered(bindVerb=None),
    "scheduler-no-verb": registered(preemptVerb=None),
    "scheduler-every-pod": registered(managedResources=None),
    "scheduler-ignorable": registered(ignorable=True),
    "scheduler-short-timeout": registered(httpTimeout="1500ms"),
    "scheduler-whole-nodes": registered(nodeCacheCapable=False),
    "scheduler-no-weight": registered(weight=None),
    "scheduler-refused": registered(weigth=2),
    "scheduler-second-binder": scheduler_text(yaml.safe_dump(RECOMMENDED | {"extenders": [OURS, GPU_SHARE]})),
    "scheduler-managed-twice": scheduler_text(
        yaml.safe_dump(RECOMMENDED | {"extenders": [OURS, {**GPU_SHARE, "bindVerb": "", **ALSO_OURS}]})
    ),
    "scheduler-bind-unwanted": registered(ExtenderConfig(binder="scheduler", allow_unplaced=True)),
    "scheduler-not-needed": list(check_scheduler(SchedulerFacts(files=(), extender=DEFAULTS, needed=False))),
}
