"""Running the program as a container runtime does."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

SOURCES = Path(__file__).parents[2] / "cni"
DEADLINE_S = 120
CONTAINER = "c0ffee"
ANNOTATIONS = "io.kubernetes.cri.pod-annotations"
PREV_RESULT = {"cniVersion": "1.1.0", "interfaces": [{"name": "eth0", "mac": "02:00:00:00:00:01"}], "ips": []}
NETNS = "/var/run/netns/k8srdma-never-made"
WISH = {"rdma_interfaces_required": '[{"min_tx_rate": 15000}]'}


CLOSING = {
    stream: ("sh", "-c", f'exec "$@" {number}>&-', "sh")
    for number, stream in enumerate(("stdin", "stdout", "stderr"))
}
"""Commands that run a program without a standard stream."""

OBEYING_FILE_MODES = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")
"""The command that runs a program without root's rights over other users' files. Another user would do as
well, but a user namespace (user_namespaces(7)) need not have one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result that the runtime sees."""

    exit_status: int
    stdout: bytes

    @property
    def error(self) -> dict[str, Any]:
        """The error on standard output, which must be one."""
        assert self.exit_status == 1
        document = json.loads(self.stdout)
        assert set(document) == {"cniVersion", "code", "msg", "details"}
        assert "\n" not in document["msg"]
        return document


class Program:
    """The compiled program."""

    def __init__(self, path: Path, *, under: Sequence[str] = ()) -> None:
        """under: the command that runs it, such as valgrind with its options."""
        self.path = path
        self._under = under

    def __call__(
        self,
        command: str,
        stdin: bytes | dict,
        *,
        env: dict | None = None,
        by: Sequence[str] = (),
        **options: Any,
    ) -> Outcome:
        """One call; standard error must be empty. `env` adds variables, or removes those without a value.

        by: the command that runs it, such as `CLOSING`. `preexec_fn` would do for that, but forks that run
        gRPC's handlers abort now and then (https://github.com/grpc/grpc/issues/43055).
        """
        environment = {"CNI_COMMAND": command, "CNI_CONTAINERID": CONTAINER, "CNI_IFNAME": "eth0"}
        environment |= {"CNI_NETNS": NETNS} | (env or {})
        done = subprocess.run(
            [*by, *self._under, self.path],
            input=stdin if isinstance(stdin, bytes) else json.dumps(stdin).encode(),
            capture_output=True,
            check=False,
            timeout=DEADLINE_S,
            env={key: value for key, value in environment.items() if value is not None},
            cwd="/",
            **options,
        )
        assert done.stderr == b""
        return Outcome(exit_status=done.returncode, stdout=done.stdout)


def netconf(run_dir: Path, **keys: Any) -> dict[str, Any]:
    """Our plugin's network configuration, not chained."""
    return {"cniVersion": "1.1.0", "name": "net", "type": "k8s-rdma-cni", "runDir": str(run_dir), **keys}


def chained(run_dir: Path, annotations: Any = None, **keys: Any) -> dict[str, Any]:
    """Behind another plugin, of a pod with these annotations."""
    delivered = {"runtimeConfig": {ANNOTATIONS: annotations}, "prevResult": PREV_RESULT}
    return netconf(run_dir, **(delivered | keys))
