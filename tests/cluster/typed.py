"""The documents' commands for an administrator, typed as they are printed, with the real programs."""

from __future__ import annotations

import asyncio
import os
import re
from dataclasses import dataclass
from pathlib import Path

from cluster.control_plane import ControlPlane, write_kubeconfig
from cluster.real import FOLDER
from cluster.real import obstacle as missing_control_plane
from documents import ROOT

_BLOCK = re.compile(r"^<!-- run by (?P<test>\S+) -->\n```\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)


def obstacle(*needed: str) -> str | None:
    """Why these programs cannot run beside a real control plane here, if they cannot."""
    if why := missing_control_plane():
        return why
    missing = [name for name in needed if not os.access(programs() / name, os.X_OK)]
    return f"{FOLDER}: {programs()} has no program {', '.join(missing)}" if missing else None


def programs() -> Path:
    """The folder of the programs."""
    return Path(os.environ[FOLDER]).resolve()


def printed(page: str, test: str) -> list[str]:
    """The blocks of a page below a mark that says that this test runs them, in order."""
    runs = Path(test).relative_to(ROOT).as_posix()
    return [each["text"] for each in _BLOCK.finditer((ROOT / page).read_text()) if each["test"] == runs]


@dataclass(frozen=True, kw_only=True)
class Shell:
    """bash in a directory, with the folder's programs, and a cluster's administrator's kubeconfig.

    home: the folder of kubectl's cache of the API. entering: a command that gives the words after it other
    surroundings.
    """

    directory: Path
    kubeconfig: Path
    home: Path
    entering: tuple[str, ...] = ()

    @classmethod
    def at(cls, plane: ControlPlane, home: Path, directory: Path = ROOT) -> Shell:
        """That of an administrator of this control plane; in the repository by default."""
        kubeconfig = write_kubeconfig(home / "admin.kubeconfig", plane, plane.admin_token)
        return cls(directory=directory, kubeconfig=kubeconfig, home=home)

    async def types(self, text: str) -> str:
        """Run it; its output. Fails with that if a command of it does."""
        status, said = await self.tries(text)
        assert status == 0, f"{text}\n{said}"
        return said

    async def refused(self, text: str) -> str:
        """Run a text that is not to succeed; its output."""
        status, said = await self.tries(text)
        assert status != 0, f"{text}\n{said}"
        return said

    async def tries(self, text: str) -> tuple[int, str]:
        """Its exit status, and its output to either stream."""
        path = os.pathsep.join([os.environ.get(FOLDER, ""), os.environ["PATH"]])
        own = {"PATH": path, "KUBECONFIG": str(self.kubeconfig), "HOME": str(self.home)}
        process = await asyncio.create_subprocess_exec(
            *self.entering,
            *("bash", "-eu", "-o", "pipefail", "-c", text),
            cwd=self.directory,
            env=os.environ | own,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await process.communicate()
        return process.returncode or 0, said.decode()
