"""`k8s-rdma demo` as a user runs it, kept running for docs/tutorial.md, and interrupted."""

from __future__ import annotations

import json
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
TUTORIAL = re.findall(
    r"<!-- run by tests/cli/test_demo.py -->\n```sh\n(.*?)```",
    (ROOT / "docs" / "tutorial.md").read_text(),
    re.S,
)
"""The tutorial's commands: one for the demo's terminal, one to have the project's commands, and the rest."""

KUBECTL_PATH = os.pathsep.join([os.environ.get("K8S_RDMA_KUBE_BIN", ""), os.environ["PATH"]])
KUBECTL = shutil.which("kubectl", path=KUBECTL_PATH)

PLUGINS = [*os.environ.get("CNI_PATH", "").split(":"), "/usr/lib/cni", "/opt/cni/bin"]
DEADLINE_S = 360

pytestmark = [
    pytest.mark.skipif(not shutil.which("iperf3"), reason="needs Debian's iperf3"),
    pytest.mark.skipif(
        not any(os.access(f"{path}/host-local", os.X_OK) for path in PLUGINS),
        reason="needs Debian's containernetworking-plugins",
    ),
    pytest.mark.skipif(
        subprocess.run(["unshare", "--net", "--mount", "true"], check=False, capture_output=True).returncode
        != 0,
        reason="needs root, or a user namespace that makes one",
    ),
]


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A short path: sockets are in it."""
    with tempfile.TemporaryDirectory(prefix="k8srdma-") as path:
        yield Path(path)


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not shutil.which(os.environ.get("CC", "cc")):
        pytest.skip("needs a C compiler (cc) for k8s-rdma-cni")
    build = tmp_path_factory.mktemp("shim")
    subprocess.run(["make", "-s", "-C", ROOT / "cni", f"BUILD={build}"], check=True)
    return build / "k8s-rdma-cni"


def start(shim: Path, directory: Path, *options: str, path: str | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "k8s_rdma", "demo", *options],
        env=os.environ
        | {"K8S_RDMA_CNI": str(shim), "TMPDIR": str(directory), "PATH": path or os.environ["PATH"]},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def programs_in(directory: Path, *names: str) -> str:
    """Return a PATH with these programs alone."""
    directory.mkdir()
    for name in names:
        (directory / name).symlink_to(str(shutil.which(name)))
    return str(directory)


def processes_of(directory: Path) -> list[str]:
    """Return command lines of running processes that name the demo's directory."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # ended meanwhile
        if f"{directory}/" in command and "pytest" not in command:
            found.append(command)
    return found


def checks_of(path: Path) -> dict[str, bool]:
    return {check["name"]: check["passed"] for check in json.loads(path.read_bytes())["checks"]}


def follow_the_tutorial(shown: str) -> list[str]:
    """Return the output of the tutorial's commands in the place that the demo names; one text a block."""
    enter, *prepare = re.findall(r"^  (nsenter --target .*|cd .*|export .*)$", shown, re.MULTILINE)
    blocks = [f"{block}echo {BETWEEN}\n" for block in TUTORIAL[2:]]
    typed = "\n".join(["set -eu", *prepare, *blocks])
    environment = os.environ | {"PATH": KUBECTL_PATH}
    done = subprocess.run(
        [*enter.split(), "-c", typed], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.split(f"{BETWEEN}\n")


BETWEEN = "-- next --"


@dataclass(frozen=True)
class Run:
    """A demo that was kept running while somebody followed the tutorial, and then ended by Ctrl-C.

    typed: the output of each block of the tutorial; empty without kubectl.
    """

    status: int
    shown: str
    document: dict[str, Any]
    typed: list[str]
    files: list[Path]
    processes: list[str]


@pytest.fixture(scope="module")
def run(shim: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    report = tmp_path_factory.mktemp("demo") / "demo.json"
    shown, typed = "", []
    with tempfile.TemporaryDirectory(prefix="k8srdma-") as path:
        directory = Path(path)
        with start(shim, directory, "--keep", "--json", str(report)) as process:
            for line in process.stdout:
                shown += line
                if line.endswith("/logs\n"):
                    try:
                        typed = follow_the_tutorial(shown) if KUBECTL else []
                    finally:
                        os.killpg(process.pid, signal.SIGINT)
        return Run(
            status=process.returncode,
            shown=shown,
            document=json.loads(report.read_bytes()),
            typed=typed,
            files=list(directory.iterdir()),
            processes=processes_of(directory),
        )


NODES = {"w1", "w2"}
_NODE_LINK = re.compile(r'href="/nodes/([^"]+)"')


def page_of_the_nodes(url: str) -> str:
    """The first page that has both nodes, read from outside of the demo's namespaces."""
    with httpx2.Client(trust_env=False, timeout=20) as client:
        while True:
            try:
                reply = client.get(url)
            except httpx2.TransportError:
                continue  # it starts
            if reply.status_code == httpx2.codes.OK and set(_NODE_LINK.findall(reply.text)) >= NODES:
                return reply.text
            time.sleep(0.1)


@pytest.mark.timeout(DEADLINE_S)
def test_demo_passes_every_check_and_leaves_no_trace(run: Run) -> None:
    assert run.status == 0, run.shown
    document = run.document
    assert document["passed"]
    *_, verdict, empty, lesson = run.shown.splitlines()
    assert (verdict, empty) == (f"{len(document['checks'])} checks passed.", "")
    assert re.fullmatch(r"gold reserved 500 Mb/s and got 5\d\d, while silver and bronze sent .*\.", lesson)
    assert all(set(check) == {"name", "passed", "expected", "measured"} for check in document["checks"])
    assert len(document["checks"]) > 30
    [pod] = yaml.safe_load_all(document["manifest"])
    assert list(pod["metadata"]["annotations"]) == ["rdma_interfaces_required"]
    assert {"fits-nowhere", "waits"} < set(document["refusals"])
    assert len(document["flows"]) == 11
    for check in document["checks"]:
        assert check["passed"], check
    assert run.files == []
    assert run.processes == []


@pytest.mark.timeout(DEADLINE_S)
@pytest.mark.skipif(not KUBECTL, reason="needs kubectl on PATH, or in the folder K8S_RDMA_KUBE_BIN")
def test_tutorial_prints_the_output_that_it_shows(run: Run) -> None:
    assert run.typed, run.shown
    pods, refused, explained, mine, interfaces, sent, held, sized, *later = run.typed
    freed, typo, late, broken, mended, *further = later
    assert re.search(r"^pod/fits-nowhere +0/1 +Pending ", pods, re.MULTILINE)
    assert re.search(r"^rdmanode.k8s-rdma.io/w2 +2 +126/128 +0.8/2Gb/s +\w+ +\w+ +True", pods, re.MULTILINE)
    assert "FailedScheduling" in refused
    assert "needs 3 interfaces of 600 Mb/s; 2 PFs have 2000 Mb/s and 128 VFs when empty" in refused
    assert "2 pods placed, 1 pending" in explained
    assert "no eviction would help" in explained
    assert "pod/one-interface condition met" in mine
    assert re.search(r"^one-interface +1/1 +Running .* w2 ", mine, re.MULTILINE)
    assert re.search(r"^rdma0@\S+ +UP +10\.56\.", interfaces, re.MULTILINE)
    [rate] = re.findall(r"([\d.]+) Mbits/sec +receiver", sent)
    assert 140 < float(rate) < 200
    assert re.search(
        r"^w2 .* \d+ +default/one-interface +rdma0 +100Mb/s +200Mb/s +software ", held, re.MULTILINE
    )
    [suggested] = re.findall(
        r"^default/pod/reservations-and-caps rdma0: .*: (\d+) Mb/s would", sized, re.MULTILINE
    )
    assert 120 <= int(suggested) <= 150
    assert re.search(r"^w2 +2 +126/128 +0.8/2Gb/s ", freed, re.MULTILINE)
    assert "(rdma_interfaces_required[0].min_rate: unknown key; did you mean min_tx_rate?)" in typo
    assert re.search(r"^1 node: no: .*best PF has 400 Mb/s", late, re.MULTILINE)
    assert re.search(r"^1 node: cannot be read: .*the agent has not answered", late, re.MULTILINE)
    assert broken.count("error") == 1
    assert "[processes-agent-down]" in broken
    assert re.search(r"^late +1/1 +Running .* w1 ", mended, re.MULTILINE)
    _, replicas, replaced, *_ = further
    assert re.findall(r"^cache-\S+ +1/1 +Running .* (w\d) ", replicas, re.MULTILINE) == ["w2"] * 3
    assert re.search(r"^w2 +NotReady ", replaced, re.MULTILINE)
    assert re.findall(r"^cache-\S+ +1/1 +Running .* (w\d) ", replaced, re.MULTILINE) == ["w1"] * 3
    assert re.findall(r"^cache-\S+ +1/1 +Terminating .* (w\d) ", replaced, re.MULTILINE) == ["w2"] * 3


@pytest.mark.timeout(DEADLINE_S)
def test_demo_omits_throughput_without_iperf3_and_gives_everything_back_when_interrupted(
    shim: Path, scratch: Path, tmp_path: Path
) -> None:
    seen = []
    needed = programs_in(tmp_path / "bin", "unshare", "nsenter", "ip", "tc", "true")
    with start(shim, scratch, "--web", "--json", str(tmp_path / "demo.json"), path=needed) as process:
        for line in process.stdout:
            seen.append(line)
            if line.startswith("Pages for people: "):
                shown = page_of_the_nodes(line.split()[-1])
            if "Caps, measured" in line:
                for _ in range(2):  # as Ctrl-C in a terminal, pressed twice: to all in the foreground
                    os.killpg(process.pid, signal.SIGINT)
                    time.sleep(0.01)
    assert process.returncode == 130, "".join(seen)
    assert "Nodes ready" in shown
    assert "without iperf3, throughput is not measured: " in "".join(seen)
    omitted = json.loads((tmp_path / "demo.json").read_bytes())["omittedChecks"]
    assert {check["reason"] for check in omitted} == {"needs iperf3"}
    assert re.search(rf"^\d+ checks passed; {len(omitted)} omitted; the demo ended before", seen[-1])
    caps = {check["name"] for check in omitted if check["name"].startswith("caps: ")}
    assert len(caps) == 3
    shown_omitted = re.findall(r"^- .* not checked +needs iperf3", "".join(seen), re.MULTILINE)
    assert len(shown_omitted) == len(omitted)
    checks = checks_of(tmp_path / "demo.json")
    assert all(checks.values()), checks
    assert not caps & checks.keys()
    assert "w1: VFs not home with their name, MAC and rates" in checks
    assert "no process is left" in checks
    assert list(scratch.iterdir()) == []
    assert processes_of(scratch) == []


@pytest.mark.timeout(DEADLINE_S)
def test_one_link_is_recorded_over_time(shim: Path, scratch: Path, tmp_path: Path) -> None:
    typed = "launch(json_file=Path(sys.argv[1]), keep=False, web=False, over_time_s=4)"
    program = (
        f"import sys; from pathlib import Path; from k8s_rdma_demo.launch import launch; sys.exit({typed})"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "demo.json"],
        env=os.environ | {"K8S_RDMA_CNI": str(shim), "TMPDIR": str(scratch)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    recorded = json.loads((tmp_path / "demo.json").read_bytes())["overTime"]
    assert recorded.keys() == {"machine", "date", "linkMbps", "events", "pods"}
    (flood_s, _), (change_s, _), (end_s, _) = recorded["events"]
    assert 0 < flood_s < change_s < end_s
    gold, silver, neighbour = recorded["pods"]
    assert [mbps for _, mbps in gold["reserved"]] == [500, 600]
    assert change_s < silver["reserved"][1][0] < gold["reserved"][1][0] < end_s
    before = [mbps for at_s, mbps in neighbour["measured"] if at_s < flood_s]
    assert max(before) < 1 < max(mbps for _, mbps in neighbour["measured"])
    assert processes_of(scratch) == []


@pytest.mark.timeout(DEADLINE_S)
def test_demo_leaves_no_process_when_killed(shim: Path, scratch: Path) -> None:
    with start(shim, scratch) as process:
        for line in process.stdout:
            if "Agents, servers, extender" in line:
                init = os.pidfd_open(int(next(scratch.glob("*/init.pid")).read_text()))
                os.killpg(process.pid, signal.SIGKILL)
    # A namespace's init has ended when all others in it have (pid_namespaces(7)).
    assert select.select([init], [], [], 30)[0]
    os.close(init)
    assert processes_of(scratch) == []


def test_demo_names_everything_that_is_missing(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "k8s_rdma", "demo"],
        env={"PATH": str(tmp_path), "K8S_RDMA_CNI": str(tmp_path / "none"), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert ended.stdout == ""
    for missing in ("unshare, nsenter, ip, tc", "k8s-rdma-cni is in the wheel; `make cni` builds it"):
        assert missing in ended.stderr
    assert "iperf3" not in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_demo_refuses_a_file_that_it_cannot_write_before_it_begins(shim: Path, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "k8s_rdma", "demo", "--json", str(tmp_path / "none" / "demo.json")],
        env=os.environ | {"K8S_RDMA_CNI": str(shim)},
        capture_output=True,
        text=True,
        check=False,
    )
    message = f"k8s-rdma: --json {tmp_path}/none/demo.json: No such file or directory\n"
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", message)


@pytest.mark.parametrize(
    ("release", "advice"),
    [
        ("ID=debian\n", "apt-get update && apt-get install iproute2 util-linux"),
        ("ID=ubuntu\nID_LIKE=debian\n", "apt-get update && apt-get install iproute2 util-linux"),
        ("ID=mint\nID_LIKE='ubuntu debian'\n", "apt-get update && apt-get install iproute2 util-linux"),
        ("ID=fedora\n", "install what Debian has as iproute2 util-linux"),
        ("", "install what Debian has as iproute2 util-linux"),
    ],
)
def test_demo_asks_for_packages_as_the_distribution_has_them(
    release: str, advice: str, shim: Path, tmp_path: Path
) -> None:
    os_release = tmp_path / "os-release"
    os_release.write_text(release)
    demo = shlex.join([sys.executable, "-m", "k8s_rdma", "demo"])
    typed = f"mount --bind {os_release} $(readlink -f /etc/os-release) && PATH={tmp_path} exec {demo}"
    ended = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", typed],
        env=os.environ | {"K8S_RDMA_CNI": str(shim)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert advice in ended.stderr


def test_demo_gives_advice_if_namespaces_are_not_permitted(shim: Path, tmp_path: Path) -> None:
    refusing = tmp_path / "unshare"
    refusing.write_text("#!/bin/sh\necho 'unshare: unshare failed: Operation not permitted' >&2\nexit 1\n")
    refusing.chmod(0o755)
    ended = subprocess.run(
        [sys.executable, "-m", "k8s_rdma", "demo"],
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "K8S_RDMA_CNI": str(shim)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert "the demo needs network, mount and PID namespaces" in ended.stderr
    assert "Operation not permitted" in ended.stderr
    assert "run it as root, or allow user namespaces" in ended.stderr
