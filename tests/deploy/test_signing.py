"""Signatures of a release, made by a job that does not build."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from deploy.release import attest
from deploy.release.signing import sign_release
from deploy.release.source import ReleaseError

ROOT = Path(__file__).parents[2]
COMMIT = "c" * 40
IDENTITY = "k8s-rdma"


@pytest.fixture
def key(tmp_path: Path) -> Path:
    if not shutil.which("ssh-keygen"):
        pytest.skip("needs ssh-keygen (Debian package openssh-client)")
    path = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    path.with_suffix(".signers").write_text(f"{IDENTITY} {path.with_suffix('.pub').read_text()}")
    return path


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A release of one file."""
    directory = tmp_path / "0.1.0"
    directory.mkdir()
    (directory / "file").write_text("content")
    source = {"uri": "git+https://git.example/k8s-rdma", "digest": {"gitCommit": COMMIT}}
    statement = {"predicate": {"buildDefinition": {"resolvedDependencies": [source]}}}
    (directory / "k8s-rdma-0.1.0.provenance.json").write_text(json.dumps(statement))
    attest.write_checksums(directory)
    return directory


def test_release_of_another_job_is_signed(release: Path, key: Path):
    sign_release(release, COMMIT, str(key))
    attest.check_signature(release, key.with_suffix(".signers"), IDENTITY)


def test_release_that_differs_from_its_checksums_is_not_signed(release: Path, key: Path):
    (release / "file").write_text("other content")
    (release / "added").touch()
    with pytest.raises(ReleaseError, match="SHA256SUMS: not those of added, file"):
        sign_release(release, COMMIT, str(key))
    assert not (release / attest.SIGNATURE).exists()


def test_release_of_another_commit_is_not_signed(release: Path, key: Path):
    with pytest.raises(ReleaseError, match=f"made of commit {COMMIT}, and {'d' * 40} is checked out"):
        sign_release(release, "d" * 40, str(key))


@pytest.mark.parametrize("name", ["SHA256SUMS", "k8s-rdma-0.1.0.provenance.json"])
def test_folder_that_is_no_release_is_not_signed(release: Path, key: Path, name: str):
    (release / name).write_text("[]")
    with pytest.raises(ReleaseError, match="no release that can be signed"):
        sign_release(release, COMMIT, str(key))


def test_signing_needs_a_key(release: Path):
    with pytest.raises(ReleaseError, match="KEY: wanted a key of SSH"):
        sign_release(release, COMMIT, "")


def test_signing_imports_only_the_standard_library():
    modules = [ROOT / "deploy/release" / f"{name}.py" for name in ("signing", "attest", "source")]
    for module in modules:
        for node in ast.parse(module.read_text()).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            packages = {name.partition(".")[0] for name in names} - {"deploy"}
            assert packages <= sys.stdlib_module_names, (module, packages)


def test_job_with_the_key_does_not_build_and_the_building_one_has_no_key():
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]
    with_key = [name for name, job in jobs.items() if "secrets." in json.dumps(job)]
    assert with_key == ["sign"]
    sign = jobs["sign"]
    assert [step["run"].split()[1] for step in sign["steps"] if "run" in step] == ["release-sign"]
    assert "container" not in sign
    [recipe] = [
        block
        for block in (ROOT / "Makefile").read_text().split("\n\n")
        if block.startswith(".PHONY: release-sign")
    ]
    assert recipe.splitlines()[1].startswith("release-sign: ##")  # no prerequisites, which install packages
    assert all("@sha256:" in job["container"]["image"] for job in jobs.values() if "container" in job)


def test_build_image_is_named_by_one_digest():
    files = ("deploy/image/Dockerfile", "scripts/build-image", ".github/workflows/release.yml")
    named = {
        word.strip('"{},')
        for file in files
        for line in (ROOT / file).read_text().splitlines()
        for word in line.replace("=", " ").replace(":-", " ").split()
        if "bookworm-slim@" in word
    }
    assert len({name.rstrip("}").rpartition("@")[2] for name in named}) == 1
    assert not any("@sha256:" not in name for name in named)
