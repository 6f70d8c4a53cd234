"""`python -m deploy.release`: make a release of this work tree's commit, or check one. docs/release.md."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from deploy.release import artifacts, attest
from deploy.release.image import DebianPackage, OciArchive, combine
from deploy.release.source import UNPUBLISHED, ReleaseError, Source, git, read_source
from deploy.release.verify import MALFORMED, Release, check_installation, check_release

ROOT = Path(__file__).parents[2]
PARAMETERS = ("architectures", "image", "repository")
"""Options that the files depend on, in the provenance besides version and source."""

REPOSITORY = re.compile(r"[A-Za-z0-9][\w.:/-]*")


def main() -> int:
    """Do what the command line says; the exit status."""
    options = _options()
    try:
        COMMANDS[options.command](options)
    except ReleaseError as error:
        sys.stderr.write(f"release: {error}\n")
        return 1
    return 0


def _build(options: argparse.Namespace) -> None:
    source = read_source(options.root, options.version, options.source)
    _check_parameters(options)
    with attest.signing_key(options.key) as key:
        _build_release(source, options, key)


def _build_release(source: Source, options: argparse.Namespace, key: Path | None) -> None:
    finished = options.output / source.version
    draft = options.output / f".{source.version}.new"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    _build_files(source, draft, options, key)
    shutil.rmtree(finished, ignore_errors=True)
    draft.rename(finished)
    _say(f"{finished}: {len(list(finished.iterdir()))} files of commit {source.commit}")
    if source.address == UNPUBLISHED:
        _say("rdma.yaml names no address to fetch from: SOURCE names the repository's, https://...")
    if not options.image:
        _say("without the image: the chart names it by tag")
    if key is None:
        _say("not signed: KEY names a key of SSH")


def _check_parameters(options: argparse.Namespace) -> None:
    """Check what a command line or another's provenance names; ReleaseError."""
    if unknown := [name for name in options.architectures if name not in artifacts.MACHINES]:
        msg = f"architectures: {unknown[0]}: must be one of {', '.join(artifacts.MACHINES)}"
        raise ReleaseError(msg)
    if options.repository and not REPOSITORY.fullmatch(options.repository):
        msg = f"repository: {options.repository}: must be a repository of images, without tag"
        raise ReleaseError(msg)


def _build_files(source: Source, output: Path, options: argparse.Namespace, key: Path | None = None) -> None:
    """Make all files of a release in an empty directory."""
    _announce("source distribution")
    sdist = artifacts.build_sdist(source, output)
    for architecture in options.architectures:
        _announce(f"wheel for {architecture}")
        artifacts.build_wheel(source, sdist, output, architecture, options.compiler)
    image = {"repository": options.repository} if options.repository else {}
    packages: list[DebianPackage] = []
    if options.image:
        path, image["digest"] = _build_image(source, output, options.architectures)
        with OciArchive(path) as archive:
            found = {
                package.purl: package for image in archive.images() for package in archive.packages(image)
            }
        packages = [found[purl] for purl in sorted(found)]
    _announce("chart, manifests, plugin, SBOM, provenance")
    artifacts.build_chart(source, output, image)
    artifacts.build_manifests(source, output, image)
    artifacts.build_kubectl_plugin(source, output)
    attest.build_sbom(source, output, packages)
    parameters = {name: getattr(options, name) for name in PARAMETERS}
    attest.build_provenance(source, output, parameters, packages)
    checksums = attest.write_checksums(output)
    if key is not None:
        attest.sign(checksums, key)


def _build_image(source: Source, output: Path, architectures: list[str]) -> tuple[Path, str]:
    """Build the image for each architecture; the archive with all of them, and its digest."""
    variables = {
        "SOURCE": source.address if source.address != UNPUBLISHED else "",
        "SOURCE_DATE_EPOCH": str(source.time),
    }
    for architecture in architectures:
        _announce(f"image for {architecture}")
        environment = {**os.environ, **variables, "ARCH": architecture}
        if subprocess.run(["scripts/build-image"], cwd=source.root, env=environment, check=False).returncode:
            msg = f"the image for {architecture} could not be built, see above"
            raise ReleaseError(msg)
    archives = [source.root / f"build/image/k8s-rdma-{architecture}.tar" for architecture in architectures]
    path = output / f"k8s-rdma-image-{source.version}.tar"
    return path, combine(archives, path, source.version)


def _check(options: argparse.Namespace) -> None:
    for line in check_release(options.directory, options.signers, options.identity):
        _say(line)
    for line in check_installation(options.directory):
        _say(line)


def _reproduce(options: argparse.Namespace) -> None:
    """Make a release again in a new clone, with the parameters of its provenance, and compare the files."""
    try:
        release = Release(options.directory)
        for name in PARAMETERS:
            setattr(options, name, release.parameters[name])
        _check_parameters(options)
    except MALFORMED as error:
        msg = f"{options.directory}: the provenance is missing or malformed: {error!r}"
        raise ReleaseError(msg) from error
    with tempfile.TemporaryDirectory(prefix="k8s-rdma-release-") as directory:
        clone, output = Path(directory, "clone"), Path(directory, "dist")
        git(options.root, "clone", "--quiet", "--no-checkout", str(options.root.absolute()), str(clone))
        git(clone, "checkout", "--quiet", "--detach", release.commit)
        output.mkdir()
        _build_files(read_source(clone, release.version, release.parameters["source"]), output, options)
        differing = sorted(
            path.name
            for path in (*release.directory.iterdir(), *output.iterdir())
            if path.name != attest.SIGNATURE and not _is_same(release.directory, output, path.name)
        )
    if differing:
        msg = f"not the same bytes: {', '.join(dict.fromkeys(differing))}"
        raise ReleaseError(msg)
    _say(f"the same bytes, made again of commit {release.commit}")


def _environment(options: argparse.Namespace) -> None:
    sys.stdout.write(f"{attest.runtime_environment(options.root)}\n")


def _is_same(directory: Path, other: Path, name: str) -> bool:
    paths = (directory / name, other / name)
    return all(path.exists() for path in paths) and len({attest.digest(path) for path in paths}) == 1


COMMANDS = {"build": _build, "check": _check, "environment": _environment, "reproduce": _reproduce}


def _say(sentence: str) -> None:
    sys.stdout.write(f"release: {sentence}\n")
    sys.stdout.flush()


def _announce(part: str) -> None:
    """Say what is made now, each of which may take minutes."""
    sys.stderr.write(f"release: making {part}\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m deploy.release", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build", help="make a release of the commit")
    build.add_argument("version", help="X.Y.Z, as in src/k8s_rdma/__init__.py")
    build.add_argument("--root", type=Path, default=ROOT, help="the work tree")
    build.add_argument(
        "--output", type=Path, default=ROOT / "dist", help="where the version's folder is made"
    )
    build.add_argument("--source", default="", help="the repository's address, https://...")
    build.add_argument("--repository", default="", help="the image's, with its registry")
    build.add_argument("--key", default="", help="file of a key of SSH that signs the checksums, or env:NAME")
    build.add_argument("--no-image", dest="image", action="store_false", help="leave the image out")
    build.add_argument(
        "--architecture",
        dest="architectures",
        action="append",
        choices=[*artifacts.MACHINES],
        help="all by default",
    )
    check = commands.add_parser("check", help="check a release, and install from it")
    check.add_argument("directory", type=Path, help="the version's folder")
    check.add_argument("--signers", type=Path, help="allowed signers, see ssh-keygen(1)")
    check.add_argument("--identity", default="k8s-rdma", help="the signer's name in that file")
    environment = commands.add_parser("environment", help="make the environment of requirements/runtime.txt")
    environment.add_argument("--root", type=Path, default=ROOT, help="the work tree")
    again = commands.add_parser("reproduce", help="make a release again in a new clone, and compare")
    again.add_argument("directory", type=Path, help="the version's folder")
    again.add_argument("--root", type=Path, default=ROOT, help="the work tree, which has the commit")
    for command in (build, again):
        command.add_argument(
            "--compiler", default="ziglang", help="CC of the wheels' program; the default is pinned"
        )
    options = parser.parse_args()
    if options.command == "build":
        options.architectures = options.architectures or [*artifacts.MACHINES]
    return options


if __name__ == "__main__":
    sys.exit(main())
