"""`make release` twice, in two clones: the same bytes; and releases that do not match their claims."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema_rs
import pytest
import yaml

from deploy.release import attest
from deploy.release.image import INDEX, OciArchive, combine
from deploy.release.source import UNPUBLISHED, ReleaseError, read_source
from deploy.release.verify import check_release
from k8s_rdma import __version__ as VERSION  # noqa: N812

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
IDENTITY = "release@example.org"
ADDRESS = "https://git.example/k8s-rdma"


def git(root: Path, *arguments: str) -> str:
    person = ("-c", "user.name=r", "-c", "user.email=r@example.org", "-c", "commit.gpgsign=false")
    command = ["git", "-C", str(root), *person, *arguments]
    moment = {"GIT_AUTHOR_DATE": "1700000000 +0000", "GIT_COMMITTER_DATE": "1700000000 +0000"}
    return subprocess.run(command, env=os.environ | moment, check=True, capture_output=True, text=True).stdout


def commit_of(root: Path) -> Path:
    """Make a repository of this work tree's files, of the year 2001, with a heading for the version."""
    names = git(ROOT, "ls-files", "--cached", "--others", "--exclude-standard").splitlines()
    for name in names:
        if (ROOT / name).is_symlink() or (ROOT / name).is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, root / name, follow_symlinks=False)
            os.utime(root / name, (1_000_000_000, 1_000_000_000), follow_symlinks=False)
    changelog = root / "CHANGELOG.md"
    changelog.write_text(re.sub(r"(?m)^## .*", f"## [{VERSION}]", changelog.read_text(), count=1))
    git(root, "init", "--quiet", "--initial-branch=main")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message=x")
    return root


def build(root: Path, output: Path, *options: str) -> Path:
    """Make a release without the image, for this machine with its own compiler, which takes seconds."""
    here = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
    where = ("--root", str(root), "--output", str(output), "--source", ADDRESS)
    what = ("--no-image", "--architecture", here, "--compiler", "cc")
    ended = subprocess.run(
        [sys.executable, "-m", "deploy.release", "build", VERSION, *where, *what, *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ("not signed" in ended.stdout) is ("--key" not in options)
    return output / VERSION


def digests(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.iterdir()}


def make_key(path: Path) -> Path:
    """Make a key of SSH, and beside it the file of allowed signers."""
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)]
    subprocess.run(command, check=True)
    path.with_suffix(".signers").write_text(f"{IDENTITY} {path.with_suffix('.pub').read_text()}")
    return path


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not shutil.which("ssh-keygen"):
        pytest.skip("needs ssh-keygen (Debian package openssh-client)")
    return make_key(tmp_path_factory.mktemp("key") / "key")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return commit_of(tmp_path_factory.mktemp("clone"))


@pytest.fixture(scope="module")
def release(root: Path, key: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("cyclonedx_py", reason="needs requirements/release.txt: make test installs it")
    return build(root, tmp_path_factory.mktemp("dist"), "--key", str(key))


@pytest.fixture
def altered(release: Path, tmp_path: Path) -> Path:
    """A copy to be changed."""
    return Path(shutil.copytree(release, tmp_path / VERSION))


def test_release_is_the_same_bytes_of_another_clone_at_another_time(release: Path, root: Path):
    """The clone is of now and at another path, the release's files are of the year 2001."""
    command = [sys.executable, "-m", "deploy.release", "reproduce", str(release)]
    options = ["--root", str(root), "--compiler", "cc"]
    ended = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.startswith("release: making source distribution\nrelease: making wheel for ")
    assert ended.stdout.startswith("release: the same bytes, made again of commit ")
    assert len(digests(release)) == 10


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("/never/made", "there is no such file"),
        ("env:NO_KEY", "the variable is empty; a workflow needs the secret, see docs/release.md"),
    ],
)
def test_release_is_refused_before_it_is_built_when_there_is_no_key(
    root: Path, tmp_path: Path, key: str, reason: str
):
    command = [sys.executable, "-m", "deploy.release", "build", VERSION, "--root", str(root)]
    options = ["--output", str(tmp_path / "dist"), "--key", key]
    ended = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == f"release: KEY={key}: {reason}\n"
    assert not (tmp_path / "dist").exists()


def test_key_of_a_variable_signs_and_is_not_inherited(
    key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").touch()
    checksums = attest.write_checksums(tmp_path)
    monkeypatch.setenv("SIGNING_KEY", key.read_text().strip())
    with attest.signing_key("env:SIGNING_KEY") as path:
        assert path is not None
        assert "SIGNING_KEY" not in os.environ
        assert path.stat().st_mode & 0o777 == 0o600
        attest.sign(checksums, path)
    assert not path.exists()
    attest.check_signature(tmp_path, key.with_suffix(".signers"), IDENTITY)


def test_plugin_is_installed_as_krew_does_it(release: Path, tmp_path: Path):
    """By the rules of krew's `internal/index/validation`, and of its manifests' documentation."""
    plugin = yaml.safe_load((release / "rdma.yaml").read_text())
    assert plugin["apiVersion"] == "krew.googlecontainertools.github.com/v1alpha2"
    assert (plugin["kind"], plugin["metadata"]) == ("Plugin", {"name": "rdma"})
    spec = plugin["spec"]
    about = {"version", "homepage", "shortDescription", "description", "caveats"}
    assert set(spec) == {*about, "platforms"}
    assert (spec["version"], spec["homepage"]) == (f"v{VERSION}", ADDRESS)
    assert "\n" not in spec["shortDescription"]
    [platform] = spec["platforms"]
    assert set(platform) == {"selector", "uri", "sha256", "files", "bin"}
    assert {each["key"] for each in platform["selector"]["matchExpressions"]} <= {"os", "arch"}
    archive = release / platform["uri"].rpartition("/")[2]
    assert platform["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    with tarfile.open(archive) as packed:
        modes = {entry.name: entry.mode for entry in packed if entry.isfile()}
        packed.extractall(tmp_path, filter="data")
    assert modes == {"LICENSE": 0o644, platform["bin"]: 0o755}
    assert platform["files"] == [{"from": "./*", "to": "."}]
    ended = subprocess.run(
        [tmp_path / platform["bin"]],
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "k8s-rdma is not on PATH" in ended.stderr


def test_release_matches_its_description(release: Path, key: Path):
    lines = list(check_release(release, key.with_suffix(".signers"), IDENTITY))
    assert f"signature of {IDENTITY}" in lines
    assert "chart with the image by tag" in lines
    assert any(line.startswith("provenance of 7 files, commit ") for line in lines)


def test_release_names_its_commit_and_no_machine(release: Path, root: Path):
    commit = git(root, "rev-parse", "HEAD").strip()
    for path in release.iterdir():
        if path.suffix in {".json", ".yaml"}:
            assert str(ROOT) not in path.read_text()
            assert tempfile.gettempdir() not in path.read_text()
    provenance = json.loads(next(release.glob("*.provenance.json")).read_text())
    source, *_ = provenance["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert source == {"uri": f"git+{ADDRESS}", "digest": {"gitCommit": commit}}
    assert f'uri: "{ADDRESS}/releases/download/v{VERSION}/' in (release / "rdma.yaml").read_text()


def test_sbom_is_valid_and_has_licences(release: Path):
    """By CycloneDX's schema, in the tool's package; its own validator takes seconds."""
    folder = Path(str(files("cyclonedx.schema._res")))
    schemas = {
        f"http://cyclonedx.org/schema/{path.name}": json.loads(path.read_text())
        for path in folder.glob("*.schema.json")
    }
    schema = schemas["http://cyclonedx.org/schema/bom-1.6.SNAPSHOT.schema.json"]
    [path] = release.glob("*.cdx.json")
    document = json.loads(path.read_text())
    jsonschema_rs.Draft7Validator(schema, retriever=schemas.__getitem__).validate(document)
    assert document["metadata"]["component"]["version"] == VERSION
    unlicensed = [each["name"] for each in document["components"] if not each.get("licenses")]
    assert unlicensed == ["protobuf"]  # its metadata has no license


def rewrite(path: Path, change: Callable[[Any], None]) -> None:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def alter_wheel(release: Path) -> None:
    [wheel] = release.glob("*.whl")
    wheel.write_bytes(wheel.read_bytes() + b"\0")


def add_file(release: Path) -> None:
    (release / "unlisted").touch()


def omit_requirement(release: Path) -> None:
    def change(document: Any) -> None:
        document["components"] = [each for each in document["components"] if each["name"] != "msgspec"]

    [path] = release.glob("*.cdx.json")
    rewrite(path, change)


def name_another_image(release: Path) -> None:
    [path] = release.glob("k8s-rdma-[0-9]*.tgz")
    with tarfile.open(path) as archive:
        files = {entry.name: archive.extractfile(entry).read() for entry in archive}  # type: ignore[union-attr]
    values = files["k8s-rdma/values.yaml"]
    files["k8s-rdma/values.yaml"] = values.replace(b'digest: ""', b"digest: sha256:" + 64 * b"0")
    with tarfile.open(path, "w:gz") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))


def name_another_plugin(release: Path) -> None:
    path = release / "rdma.yaml"
    path.write_text(re.sub(r'sha256: "\w+"', f'sha256: "{64 * "0"}"', path.read_text()))


@pytest.mark.parametrize(
    ("alter", "reason"),
    [
        (alter_wheel, "SHA256SUMS: "),
        (add_file, "SHA256SUMS: "),
    ],
)
def test_check_refuses_files_that_differ_from_the_checksums(
    alter: Callable[[Path], None], reason: str, altered: Path
):
    alter(altered)
    with pytest.raises(ReleaseError, match=reason):
        list(check_release(altered))


@pytest.mark.parametrize(
    ("alter", "reason"),
    [
        (alter_wheel, "provenance: subjects"),
        (omit_requirement, "SBOM: msgspec is None"),
        (name_another_image, "chart: image.digest"),
        (name_another_plugin, "rdma.yaml: sha256"),
    ],
)
def test_check_refuses_a_release_whose_parts_differ(
    alter: Callable[[Path], None], reason: str, altered: Path
):
    """With checksums, and but for the first with a provenance, that were made anew."""
    alter(altered)
    [provenance] = altered.glob("*.provenance.json")
    if alter is not alter_wheel:
        actual = digests(altered)

        def change(document: Any) -> None:
            for subject in document["subject"]:
                subject["digest"]["sha256"] = actual[subject["name"]]

        rewrite(provenance, change)
    for name in (attest.CHECKSUMS, attest.SIGNATURE):
        (altered / name).unlink()
    attest.write_checksums(altered)
    with pytest.raises(ReleaseError, match=reason):
        list(check_release(altered))


def test_check_refuses_a_signature_of_another_key_or_of_other_files(altered: Path, key: Path, tmp_path: Path):
    other = make_key(tmp_path / "other")
    with pytest.raises(ReleaseError, match=r"SHA256SUMS\.sig: "):
        attest.check_signature(altered, other.with_suffix(".signers"), IDENTITY)
    attest.check_signature(altered, key.with_suffix(".signers"), IDENTITY)
    with (altered / attest.CHECKSUMS).open("a") as checksums:
        checksums.write("\n")
    with pytest.raises(ReleaseError, match=r"SHA256SUMS\.sig: "):
        attest.check_signature(altered, key.with_suffix(".signers"), IDENTITY)


def test_check_refuses_a_release_without_the_required_signature(altered: Path, key: Path):
    (altered / attest.SIGNATURE).unlink()
    with pytest.raises(ReleaseError, match=r"there is no SHA256SUMS\.sig"):
        list(check_release(altered, key.with_suffix(".signers"), IDENTITY))


def test_check_refuses_a_folder_without_a_release_and_a_malformed_document(altered: Path, tmp_path: Path):
    with pytest.raises(ReleaseError, match=f"{tmp_path}/SHA256SUMS: there is no such file"):
        list(check_release(tmp_path))
    [provenance] = altered.glob("*.provenance.json")
    rewrite(provenance, lambda document: document.pop("predicate"))
    for name in (attest.CHECKSUMS, attest.SIGNATURE):
        (altered / name).unlink()
    attest.write_checksums(altered)
    with pytest.raises(ReleaseError, match="a file is missing or malformed: KeyError"):
        list(check_release(altered))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"architectures": ["amd64", "../x"]}, "architectures: ../x: must be one of amd64, arm64"),
        ({"repository": "x\nnamespace: {create: true}"}, "repository: "),
        ({"repository": 1}, "the provenance is missing or malformed: TypeError"),
        ({"version": "1.0"}, "VERSION=1.0: must be X.Y.Z"),
        (
            {"gitCommit": "--upload-pack=touch x"},
            "gitCommit: '--upload-pack=touch x': must be 40 hexadecimal",
        ),
    ],
)
def test_parameters_of_a_provenance_are_checked_before_they_are_used(
    change: dict[str, Any], reason: str, altered: Path, root: Path
):
    def rewritten(document: Any) -> None:
        definition = document["predicate"]["buildDefinition"]
        target = definition["resolvedDependencies"][0]["digest"] if "gitCommit" in change else None
        (definition["externalParameters"] if target is None else target).update(change)

    [provenance] = altered.glob("*.provenance.json")
    rewrite(provenance, rewritten)
    command = [sys.executable, "-m", "deploy.release", "reproduce", str(altered), "--root", str(root)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert reason in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with only the files that state the version."""
    root = tmp_path / "repository"
    (root / "src/k8s_rdma").mkdir(parents=True)
    (root / "src/k8s_rdma/__init__.py").write_text('__version__ = "1.2.3"\n')
    (root / "CHANGELOG.md").write_text("# Changelog\n\n## [1.2.3] - 2026-01-01\n")
    git(root, "init", "--quiet", "--initial-branch=main")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message=x")
    return root


@pytest.mark.parametrize(
    ("version", "command", "reason"),
    [
        ("", "", "VERSION=: must be X.Y.Z"),
        ("1.2", "", "VERSION=1.2: must be X.Y.Z"),
        ("1.2.3rc1", "", "VERSION=1.2.3rc1: must be X.Y.Z"),
        ("01.2.3", "", "VERSION=01.2.3: must be X.Y.Z"),
        ("1.2.4", "", "VERSION=1.2.4: src/k8s_rdma/__init__.py has 1.2.3"),
        ("1.2.3", "sed -i s/1.2.3/1.2.34/ CHANGELOG.md", "CHANGELOG.md has no heading"),
        ("1.2.3", "sed -i s/1.2.3/1.2.3.4/ CHANGELOG.md", "CHANGELOG.md has no heading"),
        ("1.2.3", "echo >>CHANGELOG.md", "the work tree differs from its commit"),
        ("1.2.3", "touch new", "the work tree differs from its commit"),
        ("1.2.3", "git tag v1.2.2", "VERSION=1.2.3: the commit is tagged v1.2.2"),
        (
            "1.2.3",
            "git tag v1.2.3 && git -c user.name=r -c user.email=r@x commit -q --allow-empty -m y",
            "VERSION=1.2.3: the tag v1.2.3 is on another commit",
        ),
    ],
)
def test_release_is_refused_when_its_commit_does_not_say_so(
    version: str, command: str, reason: str, repository: Path
):
    subprocess.run(["sh", "-c", command], cwd=repository, check=True)
    with pytest.raises(ReleaseError, match=re.escape(reason)):
        read_source(repository, version)


@pytest.mark.parametrize("address", ["git.example/k8s-rdma", "http://git.example/x", "git@git.example:x.git"])
def test_release_is_refused_with_a_malformed_address(address: str, repository: Path):
    with pytest.raises(ReleaseError, match=f"SOURCE={address}: must be https://"):
        read_source(repository, "1.2.3", address)


@pytest.mark.parametrize(
    ("remote", "address", "published"),
    [
        ("", "", UNPUBLISHED),
        ("", ADDRESS, ADDRESS),
        (f"{ADDRESS}.git", "", ADDRESS),
        ("https://user:secret@git.example/k8s-rdma.git", "", ADDRESS),
        ("git@git.example:k8s-rdma.git", "", UNPUBLISHED),
        ("/srv/k8s-rdma.git", "", UNPUBLISHED),
    ],
)
def test_address_is_the_one_of_the_remote_without_credentials(
    remote: str, address: str, published: str, repository: Path
):
    if remote:
        git(repository, "remote", "add", "origin", remote)
    git(repository, "tag", "v1.2.3")
    source = read_source(repository, "1.2.3", address)
    assert (source.address, source.time) == (published, 1_700_000_000)


# The image


def blob(data: bytes, kind: str) -> tuple[dict[str, Any], bytes]:
    digest = hashlib.sha256(data).hexdigest()
    media = f"application/vnd.oci.image.{kind}"
    return {"mediaType": media, "digest": f"sha256:{digest}", "size": len(data)}, data


def archive_of(path: Path, architecture: str, files: dict[str, bytes]) -> Path:
    """An image of one layer, in an OCI archive as buildah writes it."""
    layer = blob(tar_of(files), "layer.v1.tar")
    config = blob(json.dumps({"architecture": architecture, "os": "linux"}).encode(), "config.v1+json")
    document = {"schemaVersion": 2, "config": config[0], "layers": [layer[0]]}
    manifest = blob(json.dumps(document).encode(), "manifest.v1+json")
    blobs = {f"blobs/{each['digest'].replace(':', '/')}": data for each, data in (layer, config, manifest)}
    top = {**manifest[0], "annotations": {"org.opencontainers.image.ref.name": "k8s-rdma:1"}}
    index = json.dumps({"schemaVersion": 2, "manifests": [top]}).encode()
    path.write_bytes(tar_of({"oci-layout": b"{}", "index.json": index, **blobs}))
    return path


def tar_of(files: dict[str, bytes]) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return written.getvalue()


RECORD = b"Package: libc6\nVersion: 2.36-9+deb12u1\nArchitecture: %s\nDescription: C library\n more\n"


@pytest.fixture
def archives(tmp_path: Path) -> list[Path]:
    return [
        archive_of(
            tmp_path / f"{architecture}.tar",
            architecture,
            {"var/lib/dpkg/status.d/libc6": RECORD % architecture.encode(), "bin/true": b"x"},
        )
        for architecture in ("amd64", "arm64")
    ]


def test_images_of_architectures_are_one_image_by_one_digest(archives: list[Path], tmp_path: Path):
    digest = combine(archives, tmp_path / "image.tar", "1.2.3")
    with OciArchive(tmp_path / "image.tar") as archive:
        assert archive.descriptor["digest"] == digest
        assert archive.descriptor["mediaType"] == INDEX
        assert archive.descriptor["annotations"] == {"org.opencontainers.image.ref.name": "1.2.3"}
        platforms = [image["platform"] for image in archive.images()]
        assert platforms == [{"architecture": name, "os": "linux"} for name in ("amd64", "arm64")]
        assert list(archive.check_blobs()) == []
        [package] = archive.packages(archive.images()[1])
        assert package.purl == "pkg:deb/debian/libc6@2.36-9%2Bdeb12u1?arch=arm64"
    assert combine(archives, tmp_path / "again.tar", "1.2.3") == digest
    assert (tmp_path / "again.tar").read_bytes() == (tmp_path / "image.tar").read_bytes()


def test_blob_that_was_altered_is_found(archives: list[Path], tmp_path: Path):
    path = tmp_path / "image.tar"
    combine(archives, path, "1.2.3")
    path.write_bytes(path.read_bytes().replace(b"C library", b"D library", 1))
    with OciArchive(path) as archive:
        assert len(list(archive.check_blobs())) == 1
