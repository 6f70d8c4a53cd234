"""A node on the machine's own PFs: VFs by `init`, agent and server as processes, and our executable."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2

from e2e.processes import NodeProcesses

if TYPE_CHECKING:
    from collections.abc import Callable

URL = "http://127.0.0.1:54005"
NOBODY = 65534
DEADLINE_S = 180
"""An emulated machine may take a minute to import a process."""

Vf = tuple[str, int]
"""The name of its PF, and its index."""


class SriovNode(NodeProcesses):
    """Its PFs are the whole machine's, so that there is one at a time."""

    def __init__(self, *, pfs: tuple[str, ...], vfs: int, plugins: str, shim: Path) -> None:
        super().__init__(plugins=plugins, shim=shim, deadline_s=DEADLINE_S)
        self.directory.chmod(0o755)  # the server is another user's
        self.pfs = pfs
        self._hardware = {"requireRdma": False, "pfs": [{"names": list(pfs), "numVfs": vfs}]}
        self.http = self._stack.enter_context(
            httpx2.Client(base_url=URL, trust_env=False, timeout=self.deadline_s)
        )

    def document(self) -> dict[str, object]:
        return super().document() | {"hardware": self._hardware}

    def init(self) -> None:
        """`k8s-rdma init`, which must succeed."""
        config = {"hardware": self._hardware, "stateDir": str(self.directory / "state")}
        ended = self.command("init", "--config", str(self.config("init", config)))
        assert ended.returncode == 0, ended.stdout + ended.stderr
        self.pristine = self.kernel_state()

    def start_server(self) -> None:
        """Start it, unprivileged; it shows the agent's report when this returns."""
        config = {"node": "w1", "hardware": self._hardware, "runDir": str(self.run_dir)}
        self.start("server", self.config("server", config), user=NOBODY)
        self.wait("the server", self._answers)

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`k8s-rdma` with these arguments, to its end."""
        command = [sys.executable, "-m", "k8s_rdma", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=self.deadline_s)

    def get(self, path: str) -> Any:
        return self.http.get(path).raise_for_status().json()

    def pf(self, name: str) -> dict[str, Any]:
        """One PF of `/v1/node`."""
        return next(pf for pf in self.get("/v1/node")["pfs"] if pf["name"] == name)

    def until(self, what: str, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait for such a `/v1/node`."""
        seen: list[dict[str, Any]] = []

        def look() -> bool:
            answer = self.http.get("/v1/node")
            if answer.is_success:
                seen[:] = [answer.json()]
            return bool(seen) and holds(seen[0])

        self.wait(what, look)
        return seen[0]

    # Looking at it, never by way of the tested code

    def homes(self) -> dict[Vf, str | None]:
        """Return the netdev of each VF, unset while it is in another namespace."""
        return {
            (pf, index): next((path.name for path in (device / "net").iterdir()), None)
            for pf in self.pfs
            for index, device in enumerate(_vf_devices(pf))
        }

    def rates(self) -> dict[Vf, tuple[int, int]]:
        """Minimum and maximum of each VF in Mb/s."""
        found = {}
        for pf in self.pfs:
            (link,) = self.ip("-details", "link", "show", "dev", pf)
            for vf in link["vfinfo_list"]:
                rate = vf.get("rate") or {}
                found[pf, vf["vf"]] = (rate.get("min_tx", 0), rate.get("max_tx", 0))
        return found

    def kernel_state(self) -> dict[str, Any]:
        """Name, MAC, MTU, state and addresses of VFs at home, and all rates."""
        links = {link["ifname"]: link for link in self.ip("address", "show")}
        return {
            "links": {vf: _as_shown(links.get(name or "")) for vf, name in self.homes().items()},
            "rates": self.rates(),
        }

    def vfs_away(self) -> int:
        return sum(name is None for name in self.homes().values())

    def await_link(self, ifname: str, *, netns: str | None = None) -> None:
        """With only a carrier, frames are lost for a while."""
        self.wait(
            f"link of {ifname}",
            lambda: self.ip("link", "show", "dev", ifname, netns=netns)[0]["operstate"] == "UP",
        )

    def _answers(self) -> bool:
        try:
            answer = self.http.get("/v1/node")
        except httpx2.TransportError:
            return False
        return answer.is_success and answer.json()["ledger"] == "ok"


def _vf_devices(pf: str) -> list[Path]:
    device = Path(f"/sys/class/net/{pf}/device")
    return [device / f"virtfn{index}" for index in range(int((device / "sriov_numvfs").read_text()))]


def _as_shown(link: dict[str, Any] | None) -> tuple[object, ...] | None:
    if link is None:
        return None
    addresses = [each["local"] for each in link["addr_info"]]
    return link["ifname"], link["address"], link["mtu"], "UP" in link["flags"], addresses
