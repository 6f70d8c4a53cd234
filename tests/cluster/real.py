"""The real control plane: etcd, kube-apiserver, kube-scheduler and, if there, kube-controller-manager.

All on loopback, at free ports, with certificates made for the occasion.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx2
import yaml

from cluster.control_plane import ControlPlane, Json, free_port, write_kubeconfig
from cluster.processes import Program, running
from http_server.certificates import Issuer

FOLDER = "K8S_RDMA_KUBE_BIN"
NEEDED = ("etcd", "kube-apiserver", "kube-scheduler")
SERVICE = "10.96.0.1"
"""Pods look for the API server here: the first address of the range of Services."""
GANGS = ("GenericWorkload", "GangScheduling")
"""The feature gates of gang scheduling, alpha in Kubernetes 1.36."""
EMULATED = ("1.34", "1.35")
"""Releases that Kubernetes 1.36 emulates, in which DRAConsumableCapacity is alpha."""
_GANGS_API = "scheduling.k8s.io/v1alpha2"
CONTROLLERS = "disruption"
"""Not left to the scenario, which is the kubelet: no node is to be found dead."""


def obstacle() -> str | None:
    """Why a real control plane cannot run here, if it cannot."""
    folder = os.environ.get(FOLDER, "")
    if not folder:
        return f"{FOLDER} names no folder with {', '.join(NEEDED)}"
    missing = [name for name in NEEDED if not os.access(Path(folder) / name, os.X_OK)]
    return f"{FOLDER}: {folder} has no program {', '.join(missing)}" if missing else None


@dataclass
class Real:
    """`ControlPlane` of the programs in a folder."""

    programs: Path
    url: str
    admin_token: str
    ca_file: Path
    directory: Path
    release: tuple[int, int] = (0, 0)
    computes_budgets: bool = False
    restart_api: Callable[..., Awaitable[None]] | None = None
    gates: tuple[str, ...] = ()
    emulated: str = ""
    served: tuple[str, ...] = ()

    @property
    def feature_options(self) -> list[str]:
        """Options of any of the programs for the feature gates, each of which is off if it says `=false`."""
        settings = (gate if "=" in gate else f"{gate}=true" for gate in self.gates)
        return [
            *([f"--emulated-version={self.emulated}"] if self.emulated else []),
            *([f"--feature-gates={','.join(settings)}"] if self.gates else []),
        ]

    @asynccontextmanager
    async def scheduler(self, configuration: Json) -> AsyncIterator[Program]:
        kubeconfig = write_kubeconfig(self.directory / "scheduler.kubeconfig", self, self.admin_token)
        document = {
            **configuration,
            "clientConnection": {**configuration.get("clientConnection", {}), "kubeconfig": str(kubeconfig)},
            "leaderElection": {"leaderElect": False},
        }
        # of its own: another one may start before this one has read it
        path = self.directory / f"scheduler-{len(list(self.directory.glob('scheduler-*.yaml')))}.yaml"
        path.write_text(yaml.safe_dump(document))
        program, log = self.programs / "kube-scheduler", self.directory / "kube-scheduler.log"
        options = [f"--config={path}", "--secure-port=0", "--v=4", *self.feature_options]
        async with running(log, program, *options) as scheduler:
            yield scheduler

    async def add_crd(self, manifest: Json) -> None:
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        async with self.client() as http:
            made = await http.post(path, json=manifest)
            assert made.status_code == 201, made.text
            version, spec = manifest["spec"]["versions"][0]["name"], manifest["spec"]
            served = f"/apis/{spec['group']}/{version}/{spec['names']['plural']}"
            while (await http.get(served)).status_code != 200:
                pass

    def client(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(
            base_url=self.url,
            headers={"Authorization": f"Bearer {self.admin_token}"},
            verify=ssl.create_default_context(cafile=self.ca_file),
            trust_env=False,
        )

    async def find_release(self) -> None:
        """Ask which it is."""
        async with self.client() as http:
            said = (await http.get("/version")).json()["gitVersion"]
        major, minor = re.match(r"v(\d+)\.(\d+)", said).groups()
        self.release = int(major), int(minor)

    async def ready(self) -> bool:
        """Whether the API server is, with all that it makes at its first start."""
        try:
            async with self.client() as http:
                return (await http.get("/readyz")).status_code == 200
        except httpx2.HTTPError:
            return False


def programs_of(plane: ControlPlane) -> Path:
    """The folder with the programs of a real one."""
    assert isinstance(plane, Real)
    return plane.programs


@asynccontextmanager
async def real(
    directory: Path, gates: tuple[str, ...] = (), *, emulated: str = "", served: tuple[str, ...] = ()
) -> AsyncIterator[Real]:
    """The real ones, until the block ends.

    served: versions of APIs that kube-apiserver serves beside those that it serves by itself.
    gates: feature gates that are on. emulated: an earlier release, whose APIs and features kube-apiserver and
    kube-scheduler then have (`1.34`; Kubernetes' KEP 4330).
    """
    folder = Path(os.environ[FOLDER])
    async with AsyncExitStack() as stack:
        run = partial(_run, stack, directory)
        etcd = await _etcd(run, folder, directory)
        port = free_port()
        issuer = Issuer(directory).make()
        plane = Real(
            programs=folder,
            url=f"https://127.0.0.1:{port}",
            admin_token=secrets.token_urlsafe(24),
            ca_file=issuer.own.cert,
            directory=directory,
            gates=gates,
            emulated=emulated,
            served=(*served, *([_GANGS_API] if gates == GANGS else [])),
        )
        arguments = _api_server(plane, issuer, etcd, port)
        server = await run("kube-apiserver", folder / "kube-apiserver", *arguments)
        await server.until(plane.ready)

        async def restart(number: int = signal.SIGTERM) -> None:
            await server.end(number)
            again = await run("kube-apiserver", folder / "kube-apiserver", *arguments)
            await again.until(plane.ready)

        plane.restart_api = restart
        await plane.find_release()
        if os.access(folder / "kube-controller-manager", os.X_OK):
            kubeconfig = write_kubeconfig(directory / "controllers.kubeconfig", plane, plane.admin_token)
            await run(
                "kube-controller-manager",
                folder / "kube-controller-manager",
                f"--kubeconfig={kubeconfig}",
                f"--controllers={CONTROLLERS}",
                "--leader-elect=false",
                "--secure-port=0",
            )
            plane.computes_budgets = True
        yield plane


async def _run(stack: AsyncExitStack, directory: Path, name: str, *arguments: str | Path):
    return await stack.enter_async_context(running(directory / f"{name}.log", *arguments))


async def _etcd(run, folder: Path, directory: Path) -> str:
    url, peers = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    await run(
        "etcd",
        folder / "etcd",
        f"--data-dir={directory / 'etcd'}",
        f"--listen-client-urls={url}",
        f"--advertise-client-urls={url}",
        f"--listen-peer-urls={peers}",
        f"--initial-advertise-peer-urls={peers}",
        f"--initial-cluster=default={peers}",
        "--unsafe-no-fsync",
    )
    return url


def _api_server(plane: Real, issuer: Issuer, etcd: str, port: int) -> list[str]:
    served, accounts = issuer.issue("apiserver", SERVICE), issuer.issue("accounts")
    tokens = plane.directory / "tokens.csv"
    tokens.write_text(f'{plane.admin_token},admin,admin,"system:masters"\n')
    return [
        f"--etcd-servers={etcd}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        f"--secure-port={port}",
        f"--tls-cert-file={served.cert}",
        f"--tls-private-key-file={served.key}",
        f"--token-auth-file={tokens}",
        f"--client-ca-file={plane.ca_file}",
        "--allow-privileged=true",  # as kubeadm has it
        "--authorization-mode=RBAC",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={accounts.cert}",
        f"--service-account-signing-key-file={accounts.key}",
        "--service-cluster-ip-range=10.96.0.0/12",  # as kubeadm has it
        # Both need a controller that is not run: one makes every namespace's account, one takes taints away.
        "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
        *plane.feature_options,
        *([f"--runtime-config={','.join(f'{each}=true' for each in plane.served)}"] if plane.served else []),
    ]
