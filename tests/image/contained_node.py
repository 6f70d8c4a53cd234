"""A node with virtual PFs whose processes are containers of the image."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import yaml

from e2e.node import Node
from image.containers import Containers, Mount, Rights
from policies import EVERYTHING_FILE

VALUES = Path(__file__).parents[2] / "deploy/chart/values.yaml"
AGENT = tuple(yaml.safe_load(VALUES.read_text())["node"]["agent"]["capabilities"])
SERVER = 65532
"""The group that the chart gives all containers of the node beside their own, and the server's."""


class ContainedNode(Node):
    """Agent and server are containers that have only the DaemonSet's mounts of the machine.

    Pods' namespaces, which are mounts made later, reach the agent below `/host` alone, by propagation.
    """

    def __init__(
        self, containers: Containers, *, plugins: str, shim: Path, capabilities: tuple[str, ...] = AGENT
    ) -> None:
        super().__init__(vfs=4, plugins=plugins, shim=shim)
        self.deadline_s = containers.deadline_s
        self._share_mounts()
        self.run_dir.mkdir()
        (self.directory / "state").mkdir()
        self._containers = replace(containers, directory=self._made("containers"), started=[])
        self._stack.callback(self._containers.remove_all)
        self._agent_container = ""
        self._agent = Rights(user=0, capabilities=capabilities, groups=(SERVER,))

    def document(self) -> dict[str, object]:
        return super().document() | {"hostRoot": "/host", "stateGroup": SERVER}

    def start(self, command: str, config: Path, *, user: int | None = None) -> subprocess.Popen[bytes]:
        """user: the image's own by default, but for the agent."""
        rights, mounts = {
            "agent": (self._agent, self._agent_mounts()),
            "server": (Rights(user=user), [Mount(source=self.run_dir)]),
        }[command]
        config.chmod(0o644)
        with (self.directory / f"{command}.log").open("ab") as log:
            process = self._containers.start(
                [command, "--config", str(config)], rights, [*mounts, Mount(source=config)], log=log
            )
        self._stack.callback(process.wait, self.deadline_s)
        if command == "agent":
            self._agent_container = self._containers.started[-1]
        return process

    def in_agent(self, *command: str) -> subprocess.CompletedProcess[bytes]:
        """Run a command in the agent's container."""
        return self._containers.execute(self._agent_container, command)

    def kill_agent(self) -> None:
        """`kill -9` of the container, not of runc that waits for it."""
        assert self.agent is not None
        self._containers.remove_all()
        self.agent.wait(self.deadline_s)
        self.agent = None

    def close(self) -> None:
        self._containers.remove_all()
        super().close()

    def _agent_mounts(self) -> list[Mount]:
        return [
            Mount(source=Path("/"), at="/host", writable=True, follows=True),
            Mount(source=Path("/sys"), writable=True),
            Mount(source=self.run_dir, writable=True),
            Mount(source=self.directory / "state", writable=True),
            Mount(source=Path(EVERYTHING_FILE)),
        ]

    def _made(self, name: str) -> Path:
        directory = self.directory / name
        directory.mkdir()
        return directory

    def _share_mounts(self) -> None:
        """Mounts in here from now on are also seen by those who follow."""
        namespaces = self._made("netns")
        subprocess.run(["mount", "--bind", namespaces, namespaces], check=True)
        self._stack.callback(subprocess.run, ["umount", "--lazy", namespaces], check=True)
        subprocess.run(["mount", "--make-shared", namespaces], check=True)
