"""One node set up by hand: `init`, agent and server in a guest, and CNI's verbs as a runtime calls them.

    node = LoneNode(machine)
    node.set_up()
    pod = node.add("a", {"max_tx_rate": 50})
    ...
    node.delete(pod)
    assert node.leftovers() == {}

Nobody else is there, so that a test may do to the node whatever it wants.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from http.client import HTTPException
from typing import TYPE_CHECKING, Any

from lab.errors import LabError
from lab.places import ANNOTATIONS, ETC, MARKERS, PLUGIN, SERVER, cni_environment
from tests.lab.cluster import DEADLINE_S, until
from tests.lab.guest_http import HttpError, ask
from tests.lab.home import PFS, differences, vfs_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from lab.machine import Background, Completed, Machine
    from tests.lab.home import Vf

TRY_AGAIN = 11
"""CNI error (specification 1.1.0, "Error"): what is in the way passes by itself."""
_sandboxes = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A pod's sandbox, as a runtime knows it. netns: its name, as `ip netns` has it."""

    pod: str
    container: str
    annotation: str

    @property
    def netns(self) -> str:
        """As `ip netns` calls it."""
        return self.container


class CniFailed(Exception):  # noqa: N818 - what CNI calls an error is an answer
    """The executable's answer to a call that failed."""

    def __init__(self, verb: str, code: int, msg: str, details: str) -> None:
        super().__init__(f"{verb}: {msg} ({details})")
        self.code = code
        self.message = msg
        self.details = details


class LoneNode:
    """A guest whose PFs have VFs. state_dir: where ledger and leases are; /disk survives a reboot.

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
        self.machine = machine
        self.pfs = pfs
        self.state_dir = state_dir
        self.leases_dir = f"{state_dir}/leases"
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
            "agent": {"node": "w1", "stateDir": self.state_dir},
            "server": {"node": "w1"},
        }
        for name, document in documents.items():
            self.machine.write(f"{ETC}/{name}.yaml", json.dumps(document | {"hardware": hardware}))
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
        """It shows what the agent says when this returns."""
        config = f"{ETC}/server.yaml"
        self.server = self.machine.start("k8s-rdma", "server", "--config", config, name="server")
        self.until("the server shows the agent's report", lambda _: True)

    # The runtime

    def add(self, pod: str, *wishes: dict[str, Any]) -> Sandbox:
        """A sandbox of its own and ADD; CniFailed, and then nothing is done about it."""
        sandbox = self.sandbox(pod, *wishes)
        self.attach(sandbox)
        return sandbox

    def add_as_kubelet(self, pod: str, *wishes: dict[str, Any]) -> Sandbox:
        """The same, tried again while that is the answer: the kernel ends namespaces when it has time."""
        sandbox = self.sandbox(pod, *wishes)

        def attached() -> bool:
            try:
                self.attach(sandbox)
            except CniFailed as error:
                if error.code != TRY_AGAIN:
                    raise
                return False
            return True

        until(f"{pod} is attached", attached)
        return sandbox

    def sandbox(self, pod: str, *wishes: dict[str, Any]) -> Sandbox:
        """With a namespace, and nothing in it."""
        container = f"{pod}-{next(_sandboxes)}"
        self.machine.run("ip", "netns", "add", container)
        return Sandbox(pod, container, json.dumps(wishes))

    def attach(self, sandbox: Sandbox) -> dict[str, Any]:
        """ADD; its result."""
        result: dict[str, Any] = json.loads(self.cni("ADD", sandbox))
        return result

    def detach(self, sandbox: Sandbox) -> None:
        """DEL, and no more."""
        self.cni("DEL", sandbox)

    def delete(self, sandbox: Sandbox) -> None:
        """DEL, then the namespace's end."""
        self.detach(sandbox)
        self.end_namespace(sandbox)

    def end_namespace(self, sandbox: Sandbox) -> None:
        """Of a sandbox; nothing is in it any more, but what the agent gave it."""
        self.machine.run("ip", "netns", "delete", sandbox.netns)

    def cni(self, verb: str, sandbox: Sandbox) -> str:
        """What the executable prints, as a runtime calls it; CniFailed with its error."""
        call = self.machine.run(
            PLUGIN,
            input=self._netconf(sandbox),
            env=cni_environment(verb, sandbox.pod, sandbox.container, sandbox.netns),
            check=False,
            timeout_s=DEADLINE_S,
        )
        if call.returncode:
            told = json.loads(call.stdout)
            raise CniFailed(verb, told["code"], told["msg"], told.get("details", ""))
        return call.stdout

    def begin(self, verb: str, sandbox: Sandbox) -> Background:
        """The same call, which goes on while others are made; what it prints is in its output."""
        path = f"/run/{sandbox.container}.conf"
        self.machine.write(path, self._netconf(sandbox))
        script = f"exec {PLUGIN} < {path}"
        env = cni_environment(verb, sandbox.pod, sandbox.container, sandbox.netns)
        return self.machine.start("bash", "-c", script, name=f"{verb}-{sandbox.container}", env=env)

    def _netconf(self, sandbox: Sandbox) -> str:
        ipam = {
            "type": "host-local",
            "ranges": [[{"subnet": "10.56.0.0/24"}]],
            "dataDir": self.leases_dir,
        }
        conf = {
            "cniVersion": "1.0.0",
            "name": "rdma",
            "type": "k8s-rdma-cni",
            "ipam": ipam,
            "runtimeConfig": {ANNOTATIONS: {"rdma_interfaces_required": sandbox.annotation}},
        }
        return json.dumps(conf)

    # Looking at it

    def report(self) -> dict[str, Any] | None:
        """`/v1/node`, which the agent told; None while it does not."""
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
        """What a script of bash prints, which succeeds."""
        return self.machine.run("bash", "-c", script).stdout

    def inside(self, sandbox: Sandbox) -> dict[str, dict[str, Any]]:
        """A pod's links but lo, by name, as `ip` prints them."""
        shown = self.machine.run("ip", "-n", sandbox.netns, "-json", "address", "show").stdout
        return {link["ifname"]: link for link in json.loads(shown) if link and link["ifname"] != "lo"}

    def leftovers(self, *, within_s: float = 30.0) -> dict[str, Any]:
        """What is not as before the first pod: VFs, their rates, leases, markers, allocations; waited for."""
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
