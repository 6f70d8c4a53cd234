"""Exec plugins that give certificates, on an HTTPS server that reports who asks."""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
from base64 import b64encode
from traceback import format_exception
from typing import TYPE_CHECKING, Any

import pytest

from http_server.certificates import Issuer
from k8s_rdma.kube.client import connect
from k8s_rdma.kube.documents import Documents
from k8s_rdma.kube.errors import ApiUnreachableError
from kube.asking import Asked, ask, document, serving, write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


V1 = "client.authentication.k8s.io/v1"


@pytest.fixture
def issuer(tmp_path: Path) -> Issuer:
    return Issuer(tmp_path).make()


@pytest.fixture
def asked(issuer: Issuer) -> Iterator[Asked]:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=issuer.own.cert)
    server = issuer.issue("server")
    tls.load_cert_chain(server.cert, server.key)
    tls.verify_mode = ssl.CERT_OPTIONAL
    with serving(tls) as found:
        yield found


def gives(issuer: Issuer, **status: Any) -> None:
    """Set the status that the plugin of `kubeconfig` gives from now on, beside how often it was asked."""
    (issuer.directory / "gives").write_text(json.dumps({"status": status}))
    plugin = issuer.directory / "plugin"
    plugin.write_text('#!/bin/sh\ncd "$(dirname "$0")" && echo >> times && cat gives\n')
    plugin.chmod(0o700)


def of(issuer: Issuer, name: str, key: str = "") -> dict[str, str]:
    """A certificate by that name, and its key or another's."""
    made = issuer.issue(name)
    of_key = issuer.issue(key) if key else made
    return {"clientCertificateData": made.cert.read_text(), "clientKeyData": of_key.key.read_text()}


def locked(issuer: Issuer, name: str) -> str:
    """That one's key, which a password is needed for."""
    command = [
        "openssl",
        "pkey",
        "-in",
        str(issuer.directory / f"{name}.key"),
        "-aes128",
        "-passout",
        "pass:x",
    ]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def kubeconfig(issuer: Issuer, url: str, **user: Any) -> str:
    plugin = {"apiVersion": V1, "command": "./plugin"}
    cluster = {"server": url, "certificate-authority": str(issuer.own.cert)}
    found = document(user={"exec": plugin, **user}, clusters=[{"name": "c", "cluster": cluster}])
    return write(issuer.directory / "k", found)


def times(issuer: Issuer) -> int:
    return len((issuer.directory / "times").read_text().splitlines())


def test_certificate_of_a_plugin_identifies_the_client(issuer: Issuer, asked: Asked):
    gives(issuer, **of(issuer, "first"))
    ask(kubeconfig(issuer, asked.url))
    assert asked.by == ["first"]


def test_certificate_that_is_taken_no_longer_makes_way_for_another(issuer: Issuer, asked: Asked):
    gives(issuer, **of(issuer, "first"))
    with Documents(kubeconfig(issuer, asked.url)) as api:
        assert api.get("/version") is None
        assert api.get("/version") is None
        gives(issuer, **of(issuer, "second"))
        asked.taken = "second"
        assert api.get("/version") is None
        assert api.get("/version") is None
    assert asked.by == ["first", "first", "first", "second", "second"]
    assert (times(issuer), asked.connections) == (2, 2)


@pytest.mark.anyio
async def test_certificate_that_has_expired_makes_way_for_another_in_processes_too(
    issuer: Issuer, asked: Asked
):
    gives(issuer, **of(issuer, "first"), expirationTimestamp="2001-01-01T00:00:00Z")
    client = connect(kubeconfig(issuer, asked.url))
    assert await client.get_pod("default", "p") is None
    gives(issuer, **of(issuer, "second"), expirationTimestamp="2999-01-01T00:00:00Z")
    found = await asyncio.gather(*(client.get_pod("default", f"p{n}") for n in range(5)))
    await client.close()
    assert found == [None] * 5
    assert asked.by == ["first"] + 5 * ["second"]
    assert times(issuer) == 2


def test_certificate_of_the_users_own_goes_before_that_of_a_plugin(issuer: Issuer, asked: Asked):
    own = issuer.issue("own")
    gives(issuer, **of(issuer, "first"))
    ask(
        kubeconfig(
            issuer,
            asked.url,
            **{
                "client-certificate": str(own.cert),
                "client-key-data": b64encode(own.key.read_bytes()).decode(),
            },
        )
    )
    assert asked.by == ["own"]


def test_certificate_is_not_forgotten_for_a_token_alone(issuer: Issuer, asked: Asked):
    gives(issuer, **of(issuer, "first"))
    with Documents(kubeconfig(issuer, asked.url)) as api:
        assert api.get("/version") is None
        gives(issuer, token="t")  # noqa: S106 - of this test
        asked.taken = "Bearer t"
        with pytest.raises(ApiUnreachableError, match="gave a certificate, and now gives none"):
            api.get("/version")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"clientCertificateData": "SECRET"}, "gives one of certificate and key, and not its key"),
        ({"clientKeyData": "SECRET"}, "gives one of certificate and key, and not the certificate"),
        (
            {"clientCertificateData": "SECRET", "clientKeyData": "SECRET"},
            "its certificate and key cannot be used: no PEM",
        ),
        ({"other": "key"}, "its certificate and key cannot be used: KEY_VALUES_MISMATCH"),
        ({"locked": "key"}, "its certificate and key cannot be used: "),
    ],
)
def test_unusable_certificate_is_reported_without_its_content(
    issuer: Issuer, given: dict[str, str], told: str
):
    if "other" in given:
        given = of(issuer, "first", given["other"])
    if "locked" in given:
        given = of(issuer, "first") | {"clientKeyData": locked(issuer, "first")}
    gives(issuer, **given)
    with (
        Documents(kubeconfig(issuer, "https://127.0.0.1:1")) as api,
        pytest.raises(ApiUnreachableError) as refused,
    ):
        api.get("/version")
    plugin = f"exec plugin {issuer.directory}/plugin"
    assert refused.value.message.startswith(f"get /version: no usable credentials: {plugin}: {told}")
    assert "SECRET" not in "".join(format_exception(refused.value))
