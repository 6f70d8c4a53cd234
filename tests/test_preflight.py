"""Set-up names at once, in one sentence, a machine's missing needs: `scripts/preflight`, run as a user."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
USER = 65534

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become another user")


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A directory that every user may look into; pytest's are root's alone."""
    with TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def checkout(open_path: Path) -> Path:
    """A checkout of an ordinary user's, with the scripts alone."""
    folder = Path(shutil.copytree(ROOT / "scripts", open_path / "k8s-rdma" / "scripts")).parent
    for path in (folder, *folder.rglob("*")):
        os.chown(path, USER, USER)
    return folder


def preflight(checkout: Path, *arguments: str, path: str = os.environ["PATH"]) -> tuple[int, str]:
    ended = subprocess.run(
        [checkout / "scripts" / "preflight", *arguments],
        user=USER,
        group=USER,
        env={"PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not ended.stdout
    return ended.returncode, ended.stderr


def make_cni(checkout: Path, path: str) -> tuple[int, str, str]:
    ended = subprocess.run(
        [checkout / "scripts" / "make-cni"],
        user=USER,
        group=USER,
        env={"PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    return ended.returncode, ended.stdout, ended.stderr


def programs(folder: Path, **scripts: str) -> str:
    """Return a PATH with these scripts first; a script that fails stands for a missing program."""
    folder.mkdir()
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def test_preflight_is_silent_if_all_programs_exist(checkout: Path):
    assert preflight(checkout, "folders", "compiler") == (0, "")


@pytest.mark.parametrize("inside", ["", "setup.log"])
def test_preflight_names_the_chown_line_after_a_run_by_root(checkout: Path, inside: str):
    (checkout / ".cache").mkdir()
    if inside:
        os.chown(checkout / ".cache", USER, USER)
        (checkout / ".cache" / inside).touch()
        (checkout / ".cache" / inside).chmod(0o600)
    status, said = preflight(checkout, "folders", "compiler")
    assert status == 1
    assert said.endswith("another user made .cache here: sudo chown -R nobody .cache\n")


@pytest.mark.parametrize(
    ("release", "command"),
    [
        ("ID=ubuntu\nID_LIKE=debian\n", "apt-get install gcc libc6-dev make"),
        ("ID=fedora\n", "dnf install gcc make glibc-devel glibc-static"),
        ('ID="rocky"\nID_LIKE="rhel centos fedora"\n', "dnf install gcc make glibc-devel glibc-static"),
        (
            'ID="opensuse-leap"\nID_LIKE="suse opensuse"\n',
            "zypper install gcc make glibc-devel glibc-devel-static",
        ),
        ("ID=alpine\n", "apk add gcc make musl-dev linux-headers"),
        ("ID=other\n", "your package manager: a C compiler"),
    ],
)
def test_preflight_names_the_packages_of_the_distribution_if_the_compiler_cannot_link(
    checkout: Path, open_path: Path, release: str, command: str
):
    """Fedora and others keep the static part of libc in a package of its own."""
    (open_path / "etc").mkdir()
    (open_path / "etc/os-release").write_text(release)
    path = programs(open_path / "bin", cc="echo 'ld: cannot find -lc' >&2; exit 1")
    status, said = preflight(checkout, "--root", str(open_path), "compiler", path=path)
    assert status == 1
    assert said.startswith(f"there is no C compiler that links static programs: {command}")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("sysctl", "value", "remedy"),
    [
        ("kernel/unprivileged_userns_clone", "0", "sudo sysctl kernel.unprivileged_userns_clone=1"),
        ("user/max_user_namespaces", "0", "sudo sysctl user.max_user_namespaces=10000"),
        (
            "kernel/apparmor_restrict_unprivileged_userns",
            "1",
            "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0",
        ),
        ("kernel/apparmor_restrict_unprivileged_userns", "0", "(unshare: no): run it as root"),
    ],
)
def test_preflight_names_the_line_that_lets_users_make_namespaces(
    checkout: Path, open_path: Path, sysctl: str, value: str, remedy: str
):
    """AppArmor's is Ubuntu's since 23.10: https://ubuntu.com/blog/ubuntu-23-10-restricted-unprivileged-user-namespaces."""
    (open_path / "proc/sys" / sysctl).parent.mkdir(parents=True)
    (open_path / "proc/sys" / sysctl).write_text(f"{value}\n")
    path = programs(open_path / "bin", unshare="echo 'unshare: no' >&2; exit 1")
    status, said = preflight(checkout, "--root", str(open_path), "namespaces", path=path)
    assert status == 1
    assert remedy in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("marker", [".dockerenv", "run/.containerenv"])
def test_preflight_names_the_option_of_containers(checkout: Path, open_path: Path, marker: str):
    (open_path / "run").mkdir()
    (open_path / marker).touch()
    path = programs(open_path / "bin", unshare="echo 'unshare: no' >&2; exit 1")
    status, said = preflight(checkout, "--root", str(open_path), "namespaces", path=path)
    assert status == 1
    assert "start it with --privileged" in said


def test_set_up_says_that_there_is_no_network_instead_of_the_installers_log(checkout: Path):
    failing = "echo a; echo '[Errno -3] Temporary failure in name resolution'; exit 1"
    ended = subprocess.run(
        ["bash", "-c", 'source scripts/say.sh; quietly "setup: x" sh -c "$0"', failing],
        cwd=checkout,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert "there is no network" in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_machine_without_static_libc_makes_the_executable_by_zigs_compiler(checkout: Path, open_path: Path):
    """Set-up fetches it once; the machine's own compiler is preferred."""
    path = programs(open_path / "bin", cc="exit 1", make='printf "%s\\n" "$@"')
    python = checkout / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\ncase "$*" in *ziglang*) exit 1 ;; *) echo "$@" >&2 ;; esac\n')
    python.chmod(0o755)
    (checkout / ".cache").mkdir()
    os.chown(checkout / ".cache", USER, USER)
    status, said, _ = make_cni(checkout, path)
    target = f"CC={python} -m ziglang cc -target {os.uname().machine}-linux-musl"
    assert (status, said.splitlines()[-5:]) == (0, ["-s", "-C", "cni", target, "STATIC=-static -pie"])
    assert "requirements/compiler.txt" in said
    python.write_text("#!/bin/sh\n")
    assert "requirements" not in make_cni(checkout, path)[1]
    shutil.copy(shutil.which("true") or "/bin/true", open_path / "bin" / "cc")
    assert make_cni(checkout, path) == (0, "-s\n-C\ncni\n", "")


def test_compiler_that_reads_no_input_is_judged_by_its_own_status():
    """A writer on a pipe that ends by SIGPIPE would count as the compiler's failure, now and then."""
    script = (ROOT / "scripts" / "compiler.sh").read_text()
    slow_writer = 'printf() { sleep 0.1; builtin printf "$@"; }'
    judge = "\n".join(["set -o pipefail", slow_writer, "cc() { return 0; }", script, "links_statically"])
    assert subprocess.run(["bash", "-c", judge], check=False, timeout=60).returncode == 0
