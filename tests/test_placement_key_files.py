"""Files of keys for placements: a secret or PEM, alone or in a directory, while they are swapped."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from typing import TYPE_CHECKING

import pytest

from k8s_rdma.config.placement_keys import agent_keys, extender_keys
from k8s_rdma.config.reloading import Reloaded
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.ed25519_keys import PublicKey
from k8s_rdma.wire.placement_keys import KeySource, PlacementKeys, SharedKey, SignerKey
from key_volume import Volume, openssl, pair

if TYPE_CHECKING:
    from pathlib import Path


SECRET, NEXT = b"a secret of this test", b"the secret that comes next"


def keys_of(source: KeySource) -> PlacementKeys:
    keys = source()
    assert keys is not None
    return keys


def signer_of(keys: PlacementKeys) -> SignerKey:
    assert keys.signer is not None
    return keys.signer


def accepted(source: KeySource) -> set[str]:
    return {key.id for key in keys_of(source).accepted}


@pytest.fixture
def volume(tmp_path: Path) -> Volume:
    return Volume(tmp_path / "volume")


@pytest.mark.parametrize(
    "content", [SECRET + b"\n", b"\n\0" + bytes(range(240)), b"one line\nanother\nand one"]
)
def test_file_is_one_secret_whatever_its_bytes_are(tmp_path: Path, content: bytes):
    (tmp_path / "key").write_bytes(content)
    keys = extender_keys(str(tmp_path / "key"))()
    assert keys == PlacementKeys.shared(content.strip())
    assert accepted(agent_keys(str(tmp_path / "key"))) == {SharedKey(content.strip()).id}


def test_key_pair_of_openssl_signs_by_its_private_half(tmp_path: Path):
    private, public = pair()
    (tmp_path / "signing.key").write_bytes(private)
    (tmp_path / "public.pem").write_bytes(public)
    signing = keys_of(extender_keys(str(tmp_path / "signing.key")))
    verifying = keys_of(agent_keys(str(tmp_path / "public.pem")))
    assert [key.id for key in signing.accepted] == [key.id for key in verifying.accepted]
    assert verifying.accepted[0].verify(b"m", signer_of(signing).sign(b"m"))
    der = openssl("pkey", "-pubin", "-outform", "DER", text=public)
    assert verifying.accepted[0].id == sha256(der).hexdigest()[:16]


def test_file_of_pem_has_several_public_keys(tmp_path: Path):
    (tmp_path / "public.pem").write_bytes(b"".join(pair()[1] for _ in range(3)))
    assert len(accepted(agent_keys(str(tmp_path / "public.pem")))) == 3


def test_directory_signs_by_signing_key_and_verifies_by_all(volume: Volume):
    private, public = pair()
    volume.hold({"placement.key": SECRET, "next.key": NEXT})
    assert signer_of(keys_of(extender_keys(str(volume.directory)))) == SharedKey(SECRET)
    volume.hold({"placement.key": SECRET, "signing.key": private, "ed25519.pub": public})
    keys = keys_of(extender_keys(str(volume.directory)))
    assert isinstance(signer_of(keys).verifier, PublicKey)
    assert [key.algorithm for key in keys.accepted] == ["ed25519", "hmac-sha256"]


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ({}, ": is empty; wanted files of keys"),
        ({"placement.key": b"short"}, "/placement.key: has a key of 40 bits; wanted 16 bytes or more"),
        ({"placement.key": SECRET, "old.key": b""}, "/old.key: is empty"),
        ({"previous.key": SECRET}, ": has no file signing.key or placement.key, by which to sign"),
        (
            {"placement.key": b"-----BEGIN PUBLIC KEY-----\nAAAA"},
            "/placement.key: is no PEM file; openssl genpkey",
        ),
        (
            {"placement.key": b"-----BEGIN PUBLIC KEY-----\nAAA\n-----END PUBLIC KEY-----"},
            "/placement.key: PUBLIC KEY: is no Ed25519 key; openssl genpkey -algorithm ed25519 makes",
        ),
        (
            {"placement.key": b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"},
            "/placement.key: CERTIFICATE: is no Ed25519 key",
        ),
        ({f"{at}.key": SECRET + bytes([at]) * 2 for at in range(17)}, ": holds 17 keys; at most 16"),
    ],
)
def test_file_that_holds_no_usable_key_is_refused_by_its_name(volume: Volume, entries, said: str):
    volume.hold(entries)
    with pytest.raises(MalformedError) as refused:
        extender_keys(str(volume.directory))
    assert refused.value.message.startswith(f"placementKeyFile {volume.directory}{said}")


def test_public_key_with_other_text_around_it_is_no_secret(tmp_path: Path):
    """Whoever knows it could sign by it. RFC 7468 allows for text before."""
    public = pair()[1]
    for content in (b"\xef\xbb\xbf" + public, b"# of 2026\n" + public, public.replace(b"\n", b"\n  ")):
        (tmp_path / "public.pem").write_bytes(content)
        [key] = keys_of(agent_keys(str(tmp_path / "public.pem"))).accepted
        assert isinstance(key, PublicKey)
        with pytest.raises(MalformedError, match="begins with a public key"):
            extender_keys(str(tmp_path / "public.pem"))


def test_public_key_in_another_form_is_no_secret(tmp_path: Path):
    public = pair()[1]
    der = openssl("pkey", "-pubin", "-outform", "DER", text=public)
    for content in (
        der,
        b64encode(der),
        public.decode().encode("utf-16"),
        b"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI operator",
        b"---- BEGIN SSH2 PUBLIC KEY ----\nAAAA\n---- END SSH2 PUBLIC KEY ----",
    ):
        (tmp_path / "public.key").write_bytes(content)
        for keys in (agent_keys, extender_keys):
            with pytest.raises(MalformedError, match="is a public key in another form than PEM"):
                keys(str(tmp_path / "public.key"))


def test_another_kind_of_key_pair_is_refused(tmp_path: Path):
    private = openssl("genpkey", "-algorithm", "ec", "-pkeyopt", "ec_paramgen_curve:P-256")
    (tmp_path / "key").write_bytes(private)
    with pytest.raises(MalformedError, match="PRIVATE KEY: is no Ed25519 key"):
        extender_keys(str(tmp_path / "key"))


def test_public_key_cannot_sign_and_agents_must_have_no_private_one(tmp_path: Path):
    private, public = pair()
    (tmp_path / "private").write_bytes(private)
    (tmp_path / "public").write_bytes(public)
    with pytest.raises(MalformedError, match="begins with a public key, and only a private one signs"):
        extender_keys(str(tmp_path / "public"))
    with pytest.raises(MalformedError, match="holds a private key, by which a node could sign for others"):
        agent_keys(str(tmp_path / "private"))


def test_keys_follow_the_volume_and_those_of_before_stay_while_it_is_broken(volume: Volume):
    now = [0.0]
    volume.hold({"placement.key": SECRET})
    source = extender_keys(str(volume.directory), clock=lambda: now[0])
    assert isinstance(source, Reloaded)

    def later() -> set[str]:
        now[0] += 1
        return accepted(source)

    old, new = SharedKey(SECRET).id, SharedKey(NEXT).id
    volume.hold({"placement.key": SECRET, "next.key": NEXT})
    assert later() == {old, new}
    volume.hold({"placement.key": NEXT, "next.key": b"short"})
    assert later() == {old, new}
    assert "next.key: has a key of 40 bits" in source.failure
    volume.hold({"placement.key": NEXT, "previous.key": SECRET})
    assert later() == {old, new}
    assert source.failure == ""
    assert signer_of(keys_of(source)) == SharedKey(NEXT)
    volume.hold({"placement.key": NEXT})
    assert later() == {new}
    keys = source()
    later()
    assert source() is keys, "read anew without need"


def test_key_is_refused_when_missing_or_empty(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "key").write_text("sixteen bytes ok\n")
    (tmp_path / "short").write_text("fifteen bytes..\n")
    assert extender_keys(None)() is None
    assert extender_keys(str(tmp_path / "key"))() == PlacementKeys.shared(b"sixteen bytes ok")
    for name, why in (
        ("empty", "is empty"),
        ("short", "has a key of 120 bits; wanted 16 bytes"),
        ("none", "No such file"),
    ):
        with pytest.raises(MalformedError, match=why):
            extender_keys(str(tmp_path / name))
