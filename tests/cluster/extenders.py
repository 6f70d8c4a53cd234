"""`k8s-rdma extender` as a process of its own, and its entry in a scheduler's configuration."""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from cluster.control_plane import Json, free_port
from cluster.processes import Program

_PROBE_S = 1
_OLDER_NAMES = {
    "assumeS": "expectS",
    "apiRequestTimeoutS": "settleS",
    "requeueBy": "touchBy",
    "requeueS": "touchS",
}
QUICK = {
    "source": "http",
    "pollS": 0.1,
    "requeueS": 0.1,
    "maxAgeS": 0.001,
    "nodeTimeoutS": 5,
    "leaseS": 5,
    "apiRequestTimeoutS": 1,
}


@dataclass
class Extender:
    """One replica; started and ended as often as a scenario likes, always at the same port.

    enter: a command that runs it elsewhere or otherwise, such as `env` with variables. older: whether it is
    from before the present names of keys.
    """

    directory: Path
    name: str
    settings: Json
    port: int = field(default_factory=free_port)
    enter: list[str] = field(default_factory=list)
    older: bool = False
    program: Program | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Run it; whether it is ready is another question."""
        path = self.directory / f"{self.name}.yaml"
        names = _OLDER_NAMES if self.older else {}
        settings = {**QUICK, "port": self.port, **self.settings}
        path.write_text(json.dumps({names.get(key, key): value for key, value in settings.items()}))
        log = self.directory / f"{self.name}.log"
        self.program = Program.start_k8s_rdma(log, "extender", "--config", path, enter=self.enter)

    async def ready(self) -> None:
        """Wait until it is."""
        assert self.program is not None
        async with httpx2.AsyncClient(trust_env=False) as http:
            await self.program.until(lambda: self.is_ready(http))

    async def is_ready(self, http: httpx2.AsyncClient) -> bool:
        """Whether it would be sent requests behind a Service."""
        try:
            return (await http.get(f"{self.url}/readyz", timeout=_PROBE_S)).status_code == 200
        except httpx2.HTTPError:
            return False

    async def end(self, number: int = signal.SIGTERM) -> None:
        """End it; SIGKILL is a crash."""
        if self.program is not None and self.program.process.returncode is None:
            await self.program.end(number)


def registration(*urls: str, **more: Any) -> Json:
    """A KubeSchedulerConfiguration with the extenders at these URLs; `more`: keys of each of them."""
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "podInitialBackoffSeconds": 1,
        "podMaxBackoffSeconds": 1,
        "extenders": [
            {
                "urlPrefix": f"{url}/scheduler",
                "filterVerb": "rdma_scheduling",
                "prioritizeVerb": "prioritize",
                "bindVerb": "bind",
                "weight": 1,
                "nodeCacheCapable": True,
                "httpTimeout": "5s",
                **more,
            }
            for url in urls
        ],
    }
