"""The lab's needs of a machine, and the error of a machine that lacks one."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from lab.apt_sources import debian_sources
from lab.errors import CannotRun
from lab.layers import REPOSITORY
from lab.packages import Apt

if TYPE_CHECKING:
    from pathlib import Path

ONE_LINE = """\
# deb http://one.example/debian bookworm main
deb [arch=amd64 signed-by=/usr/share/keyrings/a.gpg] http://one.example/debian bookworm main  # ours
deb-src http://one.example/debian bookworm main
deb http://two.example/tools stable main
"""
STANZAS = """\
Types: deb deb-src
URIs: http://one.example/debian
Suites: bookworm bookworm-updates
Components: main

Enabled: no
Types: deb
URIs: http://three.example/debian
Suites: bookworm-backports
Components: main
"""


def etc(tmp_path: Path, **files: str) -> Path:
    (tmp_path / "sources.list.d").mkdir()
    for name, text in files.items():
        path = "sources.list" if name == "list" else f"sources.list.d/own.{name}"
        (tmp_path / path).write_text(text)
    return tmp_path


def test_sources_of_lines_are_debians_alone_with_their_options_and_the_backports(tmp_path: Path) -> None:
    options = "Architectures: amd64\nSigned-By: /usr/share/keyrings/a.gpg"
    common = f"Types: deb\nURIs: http://one.example/debian\nSuites: {{}}\nComponents: main\n{options}"
    assert debian_sources(etc(tmp_path, list=ONE_LINE)).split("\n\n") == [
        common.format("bookworm"),
        common.format("bookworm-backports") + "\n",
    ]


def test_sources_of_stanzas_are_those_that_are_enabled(tmp_path: Path) -> None:
    common = "Types: deb\nURIs: http://one.example/debian\nSuites: {}\nComponents: main"
    assert debian_sources(etc(tmp_path, sources=STANZAS)).split("\n\n") == [
        common.format("bookworm bookworm-updates"),
        common.format("bookworm-backports") + "\n",
    ]


OF_DEBIAN_13 = """\
Types: deb deb-src
URIs: {0}
Suites: trixie trixie-updates trixie-backports
Components: main non-free-firmware
Signed-By: /usr/share/keyrings/debian-archive-keyring.pgp

Types: deb
URIs: {1}
Suites: trixie-security
Components: main non-free-firmware
Signed-By: /usr/share/keyrings/debian-archive-keyring.pgp

Types: deb
URIs: http://two.example/tools
Suites: trixie
Components: main

Types: deb
URIs: http://three.example/linux/debian
Suites: trixie
Components: stable

Types: deb
URIs: http://four.example/debian
Suites: stable
Components: main
"""


@pytest.mark.parametrize(
    "archives",
    [
        ("http://one.example/debian", "http://one.example/debian-security"),
        ("https://one.example/debian/", "https://security.example/debian-security/"),
        ("mirror+file:///etc/apt/mirrors/debian.list", "mirror+file:/etc/apt/mirrors/debian-security.list"),
    ],
)
def test_machine_of_debian_13_finds_debian_12_in_the_same_archive(
    tmp_path: Path, archives: tuple[str, str]
) -> None:
    common = (
        "Types: deb\nURIs: {}\nSuites: {}\nComponents: main non-free-firmware\n"
        "Signed-By: /usr/share/keyrings/debian-archive-keyring.pgp"
    )
    assert debian_sources(etc(tmp_path, sources=OF_DEBIAN_13.format(*archives))).split("\n\n") == [
        common.format(archives[0], "bookworm"),
        common.format(archives[1], "bookworm-security"),
        common.format(archives[0], "bookworm-backports") + "\n",
    ]


@pytest.mark.parametrize(
    "other", ["", "deb http://two.example/ubuntu jammy main\n", "deb http://two.example/debian bullseye main"]
)
def test_machine_without_a_source_of_debian_12_cannot_run_it(tmp_path: Path, other: str) -> None:
    with pytest.raises(CannotRun, match=r"no source of Debian 12 \(bookworm\), nor of a later"):
        debian_sources(etc(tmp_path, list=other))


@pytest.mark.skipif(shutil.which("apt-get") is None, reason="needs apt-get")
def test_source_that_does_not_answer_is_named(tmp_path: Path) -> None:
    source = f"Types: deb\nTrusted: yes\nURIs: file:{tmp_path}/gone\nSuites: bookworm\nComponents: main\n"
    with pytest.raises(CannotRun, match=r"could not be had: apt-get: E: .*/gone"):
        Apt(tmp_path, source)


def can_run(tmp_path: Path, *before: str, path: str) -> subprocess.CompletedProcess[str]:
    command = (*before, sys.executable, "-m", "lab", "--cache", str(tmp_path / "cache"), "can-run")
    return subprocess.run(
        command, cwd=REPOSITORY, env={"PATH": path}, capture_output=True, text=True, check=False
    )


@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs amd64")
def test_machine_without_the_programs_says_which_in_one_sentence(tmp_path: Path) -> None:
    ended = can_run(tmp_path, path=str(tmp_path))
    assert ended.returncode == 1
    assert ended.stderr.startswith(
        "the lab cannot run here: programs are missing: apt-get, dpkg-deb, gcc-12,"
    )
    assert ended.stderr.count("\n") == 1


@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs amd64")
def test_machine_of_another_kind_says_so_in_one_sentence(tmp_path: Path) -> None:
    setarch = shutil.which("setarch")
    assert setarch is not None
    ended = can_run(tmp_path, setarch, "i686", path="/usr/bin:/bin")
    assert ended.returncode == 1
    assert ended.stderr.startswith("the lab cannot run here: guests are made of Debian's packages for amd64,")
    assert ended.stderr.count("\n") == 1
