"""`python3 -m deploy.release.signing DIRECTORY --key KEY`: sign a release that something else has made.

The key is then never where compilers, package managers and programs that they download run. So this module,
and what it imports, need nothing but Python and ssh-keygen.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from deploy.release import attest
from deploy.release.source import ReleaseError, git

ROOT = Path(__file__).parents[2]


def sign_release(directory: Path, commit: str, key: str) -> None:
    """Sign a release's checksums. ReleaseError unless they are those of its files, and of that commit."""
    if not key:
        msg = "KEY: wanted a key of SSH, its file or env:NAME"
        raise ReleaseError(msg)
    checksums = directory / attest.CHECKSUMS
    try:
        lines = [line.split("  ", 1) for line in checksums.read_text().splitlines()]
        stated = {name: digest for digest, name in lines}
        provenance = json.loads((directory / f"k8s-rdma-{directory.name}.provenance.json").read_text())
        source = provenance["predicate"]["buildDefinition"]["resolvedDependencies"][0]
        made_of = source["digest"]["gitCommit"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        msg = f"{directory}: no release that can be signed: {error!r}"
        raise ReleaseError(msg) from error
    if made_of != commit:
        msg = f"{directory}: made of commit {made_of}, and {commit} is checked out"
        raise ReleaseError(msg)
    unsigned = {attest.CHECKSUMS, attest.SIGNATURE}
    found = {path.name: attest.digest(path) for path in directory.iterdir() if path.name not in unsigned}
    if differing := sorted(name for name, _ in stated.items() ^ found.items()):
        msg = f"{checksums}: not those of {', '.join(dict.fromkeys(differing))}"
        raise ReleaseError(msg)
    with attest.signing_key(key) as file:
        (directory / attest.SIGNATURE).unlink(missing_ok=True)
        attest.sign(checksums, Path(file or key))


def main() -> int:
    """Do what the command line says; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m deploy.release.signing", description=__doc__)
    parser.add_argument("directory", type=Path, help="the version's folder")
    parser.add_argument("--root", type=Path, default=ROOT, help="the work tree, at the release's commit")
    parser.add_argument("--key", default="", help="file of a key of SSH, or env:NAME")
    options = parser.parse_args()
    try:
        sign_release(options.directory, git(options.root, "rev-parse", "HEAD"), options.key)
    except ReleaseError as error:
        sys.stderr.write(f"release: {error}\n")
        return 1
    sys.stdout.write(f"release: {options.directory / attest.SIGNATURE}: signed\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
