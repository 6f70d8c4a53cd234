"""One node set up by hand: `init`, agent and server in a guest, which is a runtime, too.

    node = LoneNode(machine)
    node.set_up()
    pod = node.add("a", {"max_tx_rate": 50})
    ...
    node.delete(pod)
    assert node.leftovers() == {}

The node is alone, so that a test may change it at will.
"""

from __future__ import annotations

import json
from http.client import HTTPException
from typing import TYPE_CHECKING, Any

from lab.errors import LabError
from lab.places import ETC, MARKERS, SERVER
from tests.lab.cluster import DEADLINE_S, until
from tests.lab.guest_http import HttpError, ask
from tests.lab.guest_runtime import GuestRuntime
from tests.lab.home import PFS, Vf, differences, vfs_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from lab.machine import Background, Completed, Machine

EVERYTHING = 'policies: [{name: everything, namespaces: ["*"], allow: ["*"]}]'


class LoneNode(GuestRuntime):
    """A guest with VFs on its PFs. state_dir: of ledger and leases; /disk survives a reboot.

    Whatever a node of before left in the guest is gone.
    """

    before: dict[tuple[str, int], Vf]
    """As `set_up` left them."""

    def __init__(
        self,
        machine: Machine,
        *,
        pfs: tuple[str, ...] = PFS,
        vfs: int = 4,
        state_dir: str = "/var/lib/k8s-rdma",
        require_rdma: bool = False,
    ) -> None:
        super().__init__(machine, leases_dir=f"{state_dir}/leases")
        self.pfs = pfs
        self.state_dir = state_dir
        self.vfs = vfs
        self.require_rdma = require_rdma
        self.agent: Background | None = None
        self.server: Background | None = None

    # Setting it up

    def set_up(self) -> None:
        """As the documentation has it done by hand; the agent and the server run afterwards."""
        self._clear()
        self.write_configuration()
        self.init()
        self.before = vfs_of(self.machine, self.pfs)
        self.start_agent()
        self.start_server()

    def _clear(self) -> None:
        self.sh(
            f"rm -rf {self.state_dir} {self.leases_dir} /run/k8s-rdma; "
            "for f in /sys/class/net/*/device/sriov_numvfs; do echo 0 > $f; done; "
            "ip netns list | while read -r name _; do ip netns delete $name; done"
        )

    def write_configuration(self) -> None:
        """Of all processes."""
        hardware = {"requireRdma": self.require_rdma, "pfs": [{"names": list(self.pfs), "numVfs": self.vfs}]}
        documents: dict[str, dict[str, object]] = {
            "init": {"stateDir": self.state_dir},
            "agent": {"node": "w1", "stateDir": self.state_dir, "policyFile": f"{ETC}/policies.yaml"},
            "server": {"node": "w1"},
        }
        for name, document in documents.items():
            self.machine.write(f"{ETC}/{name}.yaml", json.dumps(document | {"hardware": hardware}))
        self.machine.write(f"{ETC}/policies.yaml", EVERYTHING)
        self.machine.run("mkdir", "-p", self.state_dir)

    def init(self) -> Completed:
        """`k8s-rdma init`, which succeeds."""
        return self.machine.run("k8s-rdma", "init", "--config", f"{ETC}/init.yaml", timeout_s=DEADLINE_S)

    def start_agent(self) -> None:
        """It serves when this returns."""
        began = self.count("agent_ready")
        config = f"{ETC}/agent.yaml"
        self.agent = agent = self.machine.start("k8s-rdma", "agent", "--config", config, name="agent")

        def serves() -> bool:
            assert agent.running(), agent.output()[-4000:]
            return self.count("agent_ready") > began

        until("the agent", serves)

    def kill_agent(self) -> None:
        """`kill -9`."""
        assert self.agent is not None
        self.agent.kill()
        self.agent = None

    def agent_pid(self) -> int:
        """In the guest."""
        script = "pgrep -o -f 'k8s-rdma agent --config'"
        return int(self.machine.run("bash", "-c", script).stdout)

    def await_agents_end(self) -> None:
        """Somebody else has killed it."""
        assert self.agent is not None
        self.agent.wait(DEADLINE_S)
        self.agent = None

    def stop(self) -> None:
        """End all that runs."""
        for process in filter(None, (self.server, self.agent)):
            process.kill()
        self.agent = self.server = None

    def start_server(self) -> None:
        """It shows the agent's report when this returns."""
        config = f"{ETC}/server.yaml"
        self.server = self.machine.start("k8s-rdma", "server", "--config", config, name="server")
        self.until("the server shows the agent's report", lambda _: True)

    # Looking at it

    def report(self) -> dict[str, Any] | None:
        """Return `/v1/node` while the agent reports it."""
        try:
            answer: dict[str, Any] = ask(self.machine, "GET", f"{SERVER}/v1/node")
        except (HttpError, LabError, HTTPException, ValueError):
            return None
        return answer if answer["ledger"] == "ok" else None

    def unreadable(self) -> str:
        """Why there is no `/v1/node`; empty while there is one."""
        try:
            ask(self.machine, "GET", f"{SERVER}/v1/node")
        except HttpError as error:
            return json.dumps(error.body)
        return ""

    def until(self, what: str, holds: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
        """The first such report of the agent's; TimeoutError shows the last one."""
        last: list[dict[str, Any]] = []

        def look() -> dict[str, Any] | None:
            report = self.report()
            last[:] = [report] if report else last
            return report if report and holds(report) else None

        try:
            found: dict[str, Any] = until(what, look)
        except TimeoutError as error:
            error.add_note(json.dumps(last, indent=1)[:8000])
            raise
        return found

    def metrics(self) -> str:
        """`/metrics`, as Prometheus reads it."""
        return self.machine.run("busybox", "wget", "-qO-", f"{SERVER}/metrics").stdout

    def log(self, event: str) -> list[dict[str, Any]]:
        """The agent's lines of an event, of all its lives."""
        path = self.machine.shared / "agent.log"
        lines = path.read_text().splitlines() if path.exists() else []
        told = (json.loads(line) for line in lines if line.startswith("{") and line.endswith("}"))
        return [line for line in told if line["event"] == event]

    def count(self, event: str) -> int:
        """How often the agent has logged an event, in all its lives."""
        return len(self.log(event))

    def sh(self, script: str) -> str:
        """Return the output of a script of bash, which succeeds."""
        return self.machine.run("bash", "-c", script).stdout

    def leftovers(self, *, within_s: float = 30.0) -> dict[str, Any]:
        """Return changes by pods: VFs, their rates, leases, markers, allocations; waits for their end."""
        found: dict[str, Any] = {}

        def nothing() -> bool:
            found.clear()
            found.update(self._left())
            return not found

        try:
            until("nothing is left", nothing, within_s=within_s)
        except TimeoutError:
            return found
        return {}

    def _left(self) -> dict[str, Any]:
        found: dict[str, Any] = differences(self.before, vfs_of(self.machine, self.pfs))
        script = f"ls -d {self.leases_dir}/*/[0-9]* {MARKERS}/* 2>/dev/null; true"
        report = self.report() or {"allocations": "no report", "pfs": []}
        kept = {
            "files": self.machine.run("bash", "-c", script).stdout.split(),
            "allocations": report["allocations"],
            "foreign": [each for pf in report["pfs"] for each in pf.get("foreign") or ()],
        }
        return found | {what: left for what, left in kept.items() if left}


def problems(report: dict[str, Any], pf: str) -> str:
    """All that a report says is wrong with a PF, for `in`."""
    return "\n".join(
        each for found in report["pfs"] if found["name"] == pf for each in found.get("problems") or ()
    )


def foreign(report: dict[str, Any], pf: str) -> dict[int, str]:
    """VFs of a PF that somebody else has, and why, by index."""
    return {
        each["vf"]: each["why"]
        for found in report["pfs"]
        if found["name"] == pf
        for each in found.get("foreign") or ()
    }
