"""Sandboxes in a guest, and CNI's verbs on them as a container runtime calls them."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lab.places import PLUGIN, cni_environment, cni_network
from tests.lab.cluster import DEADLINE_S, until

if TYPE_CHECKING:
    from lab.machine import Background, Machine

TRY_AGAIN = 11
"""CNI error (specification 1.1.0, "Error"): the obstacle passes by itself."""
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


class CniFailed(Exception):  # noqa: N818 - an error of CNI is an answer
    """The executable's answer to a call that failed."""

    def __init__(self, verb: str, code: int, msg: str, details: str) -> None:
        super().__init__(f"{verb}: {msg} ({details})")
        self.code = code
        self.message = msg
        self.details = details


class GuestRuntime:
    """leases_dir: the directory of host-local's addresses."""

    def __init__(self, machine: Machine, *, leases_dir: str) -> None:
        self.machine = machine
        self.leases_dir = leases_dir

    def add(self, pod: str, *wishes: dict[str, Any]) -> Sandbox:
        """A sandbox of its own and ADD; CniFailed, which is left without a cleanup."""
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
        """With a namespace that is empty."""
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
        """Of a sandbox; it is empty by then, but for the agent's devices."""
        self.machine.run("ip", "netns", "delete", sandbox.netns)

    def cni(self, verb: str, sandbox: Sandbox) -> str:
        """Return the executable's output, as a runtime calls it; CniFailed with its error."""
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
        """The same call, which goes on while others are made; the returned process has its output."""
        path = f"/run/{sandbox.container}.conf"
        self.machine.write(path, self._netconf(sandbox))
        script = f"exec {PLUGIN} < {path}"
        env = cni_environment(verb, sandbox.pod, sandbox.container, sandbox.netns)
        return self.machine.start("bash", "-c", script, name=f"{verb}-{sandbox.container}", env=env)

    def inside(self, sandbox: Sandbox) -> dict[str, dict[str, Any]]:
        """A pod's links but lo, by name, as `ip` prints them."""
        shown = self.machine.run("ip", "-n", sandbox.netns, "-json", "address", "show").stdout
        return {link["ifname"]: link for link in json.loads(shown) if link and link["ifname"] != "lo"}

    def _netconf(self, sandbox: Sandbox) -> str:
        subnet = {"subnet": "10.56.0.0/24"}
        return json.dumps(
            cni_network(version="1.0.0", subnet=subnet, leases=self.leases_dir, asked=sandbox.annotation)
        )
