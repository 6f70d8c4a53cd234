"""Servers over TLS: who is served, limits of a handshake; and the addresses that servers listen on."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import shutil
import socket
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from msgspec import structs

from http_server.certificates import Certificate, Issuer
from http_server.serving import PARTS, REQUEST, Served, run, served
from k8s_rdma.config.tls import TlsConfig
from k8s_rdma.errors import K8sRdmaError, MalformedError
from k8s_rdma.http_server import ConnectionLimits, listen
from k8s_rdma.http_server.asgi import tls_context
from k8s_rdma.http_server.protocol import HttpProtocol
from k8s_rdma.http_server.server import Handshake

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Issuer:
    return Issuer(tmp_path_factory.mktemp("certificates")).make()


@pytest.fixture(scope="module")
def ours(issuer: Issuer) -> Certificate:
    return issuer.issue("server")


def config(certificate: Certificate, client_ca: Path | None = None) -> TlsConfig:
    return TlsConfig(
        cert_file=str(certificate.cert),
        key_file=str(certificate.key),
        client_ca_file=str(client_ca) if client_ca else None,
    )


def trusting(issuer: Issuer, certificate: Certificate | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(issuer.own.cert))
    if certificate:
        context.load_cert_chain(certificate.cert, certificate.key)
    return context


async def answer(s: Served, context: ssl.SSLContext) -> tuple[int, bytes]:
    client = await s.connect(ssl=context)
    client.send(REQUEST)
    return await client.answer()


async def subject(s: Served, context: ssl.SSLContext) -> str:
    client = await s.connect(ssl=context)
    [[(_, name)]] = client.writer.get_extra_info("peercert")["subject"]
    return name


def test_answers_are_encrypted_and_large_ones_whole(issuer: Issuer, ours: Certificate) -> None:
    async def scenario() -> None:
        async with served(tls=tls_context(config(ours))) as s:
            client = await s.connect(ssl=trusting(issuer))
            for _ in range(2):
                client.send(REQUEST)
                assert await client.answer() == (200, b"now")
            client.send(b"GET /large HTTP/1.1\r\nHost: w1\r\n\r\n")
            assert len((await client.answer())[1]) == 50 << 20
            client.send(b"GET /parts HTTP/1.1\r\nHost: w1\r\n\r\n")
            assert await client.answer() == (200, b"".join(PARTS))

    run(scenario())


def test_request_is_answered_when_it_comes_with_the_end_of_the_handshake(
    issuer: Issuer, ours: Certificate
) -> None:
    async def scenario() -> None:
        async with served(tls=tls_context(config(ours))) as s:
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            tls = trusting(issuer).wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
            client = await s.connect()
            with pytest.raises(ssl.SSLWantReadError):
                tls.do_handshake()
            client.send(outgoing.read())
            while tls.version() is None or outgoing.pending == 0:
                incoming.write(await client.reader.read(65536))
                try:
                    tls.do_handshake()
                except ssl.SSLWantReadError:
                    continue
            tls.write(REQUEST)
            client.send(outgoing.read())  # the client's last word of the handshake, and the request, in one
            read = b""
            while b"now" not in read:
                incoming.write(await client.reader.read(65536))
                with suppress(ssl.SSLWantReadError):
                    while True:
                        read += tls.read()  # a record

    run(scenario())


def test_old_versions_and_plain_text_are_not_spoken(issuer: Issuer, ours: Certificate) -> None:
    async def scenario() -> None:
        async with served(tls=tls_context(config(ours))) as s:
            assert tls_context(config(ours))().minimum_version is ssl.TLSVersion.TLSv1_2
            plain = await s.connect()
            plain.send(REQUEST)
            assert b"HTTP" not in await plain.reader.read()
            assert await answer(s, trusting(issuer)) == (200, b"now")

    run(scenario())


def test_only_clients_of_the_authority_are_served_when_one_is_given(
    issuer: Issuer, ours: Certificate, tmp_path: Path
) -> None:
    stranger = Issuer(tmp_path, "stranger").make()

    async def scenario() -> None:
        async with served(tls=tls_context(config(ours, issuer.own.cert))) as s:
            assert await answer(s, trusting(issuer, issuer.issue("client"))) == (200, b"now")
            for context in (trusting(issuer), trusting(issuer, stranger.issue("client"))):
                with pytest.raises((ssl.SSLError, asyncio.IncompleteReadError, ConnectionError)):
                    await answer(s, context)
            await s.until(lambda: len(s.connections) == 1)

    run(scenario())


@pytest.mark.parametrize(
    "names", [("client",), ("other", "spiffe://cluster/prometheus"), ("client.example",)]
)
def test_clients_of_the_names_that_are_given_are_served_and_no_others(
    issuer: Issuer, ours: Certificate, names: tuple[str, ...]
) -> None:
    known = issuer.issue("client", alternative=("DNS:client.example", "URI:spiffe://cluster/prometheus"))
    unknown = issuer.issue("stranger", alternative=("DNS:stranger.example",))
    files = structs.replace(config(ours, issuer.own.cert), client_names=names)

    async def scenario() -> None:
        async with served(tls=tls_context(files)) as s:
            assert await answer(s, trusting(issuer, known)) == (200, b"now")
            for target in (b"/now", b"/later"):
                client = await s.connect(ssl=trusting(issuer, unknown))
                client.send(b"GET %b HTTP/1.1\r\nHost: w1\r\n\r\n" % target)
                status, body = await client.answer()
                assert status == 403
                message = json.loads(body)["error"]["message"]
                assert "(stranger, stranger.example) are none of tls.clientNames" in message
                assert await client.ended()
            assert s.paths.waiting == 0

    run(scenario())


def test_renewed_certificate_is_shown_to_the_next_connection(issuer: Issuer, tmp_path: Path) -> None:
    async def scenario() -> None:
        now = [0.0]
        first, second = issuer.issue("first"), issuer.issue("second")
        paths = [tmp_path / "tls.crt", tmp_path / "tls.key"]
        for path, part in zip(paths, (first.cert, first.key), strict=True):
            shutil.copy(part, path)
        files = TlsConfig(cert_file=str(paths[0]), key_file=str(paths[1]))
        async with served(tls=tls_context(files, clock=lambda: now[0])) as s:
            kept = await s.connect(ssl=trusting(issuer))
            assert await subject(s, trusting(issuer)) == "first"
            shutil.copy(second.cert, paths[0])
            now[0] += 1
            assert await subject(s, trusting(issuer)) == "first"  # the other half is missing
            shutil.copy(second.key, paths[1])
            assert await subject(s, trusting(issuer)) == "first"  # not looked at again so soon
            now[0] += 1
            assert await subject(s, trusting(issuer)) == "second"
            for path in paths:
                path.unlink()
            now[0] += 1
            assert await subject(s, trusting(issuer)) == "second"
            kept.send(REQUEST)
            assert await kept.answer() == (200, b"now")

    run(scenario())


def test_client_authority_that_is_taken_away_is_not_trusted_any_more(
    issuer: Issuer, ours: Certificate, tmp_path: Path
) -> None:
    other = Issuer(tmp_path, "other").make()
    authorities = tmp_path / "ca.crt"
    client = trusting(issuer, other.issue("client"))

    async def scenario() -> None:
        now = [0.0]
        shutil.copy(other.own.cert, authorities)
        async with served(tls=tls_context(config(ours, authorities), clock=lambda: now[0])) as s:
            assert await answer(s, client) == (200, b"now")
            authorities.write_bytes(issuer.own.cert.read_bytes())
            now[0] += 1
            with pytest.raises((ssl.SSLError, asyncio.IncompleteReadError, ConnectionError)):
                await answer(s, client)

    run(scenario())


def test_handshake_that_does_not_come_ends(ours: Certificate) -> None:
    async def scenario() -> None:
        async with served(tls=tls_context(config(ours)), limits=ConnectionLimits(request_timeout_s=0.2)) as s:
            silent, stuck = await s.connect(), await s.connect()
            stuck.send(b"\x16\x03\x01\x02\x00\x01")
            assert await silent.ended()
            assert await stuck.ended()
            await s.until(lambda: not s.connections)

    run(scenario())


def test_handshakes_that_do_not_come_make_room_when_there_are_too_many(
    issuer: Issuer, ours: Certificate
) -> None:
    async def scenario() -> None:
        async with served(tls=tls_context(config(ours)), limits=ConnectionLimits(connections=4)) as s:
            silent = [await s.connect() for _ in range(8)]
            for _ in range(3):
                assert await answer(s, trusting(issuer)) == (200, b"now")
            assert await silent[0].ended()
            assert len(s.connections) <= 4

    run(scenario())


def test_client_is_cut_off_when_it_does_not_read(issuer: Issuer, ours: Certificate) -> None:
    async def scenario() -> None:
        async with served(tls=tls_context(config(ours)), limits=ConnectionLimits(send_timeout_s=0.2)) as s:
            client = await s.connect(ssl=trusting(issuer))
            client.send(b"GET /large HTTP/1.1\r\nHost: w1\r\n\r\n")
            await client.head()
            client.stop_reading()
            await s.until(lambda: not s.connections)
            assert await answer(s, trusting(issuer)) == (200, b"now")

    run(scenario())


def test_server_ends_when_handshakes_do_not(ours: Certificate) -> None:
    async def scenario() -> None:
        async with served(tls=tls_context(config(ours))) as s:
            silent = await s.connect()
            await s.until(lambda: len(s.connections) == 1)
        assert await silent.ended()

    run(scenario())


@pytest.mark.parametrize(
    "sent", [b"", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", REQUEST], ids=["", "half", "http"]
)
@pytest.mark.parametrize("connections", [2, 64], ids=["evicted", "left"])
def test_failed_handshakes_leave_no_garbage(ours: Certificate, sent: bytes, connections: int) -> None:
    async def scenario() -> None:
        async with served(
            tls=tls_context(config(ours)), limits=ConnectionLimits(connections=connections)
        ) as s:
            gc.collect()
            gc.disable()
            for _ in range(8):
                client = await s.connect()
                client.send(sent)
                await asyncio.sleep(0)
            await s.until(lambda: len(s.connections) == min(connections, 8) or sent == REQUEST)
            for client in s.clients:
                client.close()
            await s.until(lambda: not s.connections)
            for _ in range(3):  # turns in which transports close
                await asyncio.sleep(0)
            kept = [type(each) for each in gc.get_objects() if isinstance(each, (Handshake, HttpProtocol))]
            assert not kept

    try:
        run(scenario())
    finally:
        gc.enable()


@pytest.mark.parametrize("field", ["cert_file", "key_file", "client_ca_file"])
@pytest.mark.parametrize("content", [None, "", "no PEM"])
def test_malformed_file_is_refused_by_its_field(
    issuer: Issuer, ours: Certificate, tmp_path: Path, field: str, content: str | None
) -> None:
    bad = tmp_path / "bad.pem"
    if content is not None:
        bad.write_text(content)
    files = {"cert_file": ours.cert, "key_file": ours.key, "client_ca_file": issuer.own.cert, field: bad}
    with pytest.raises(MalformedError) as refused:
        tls_context(TlsConfig(**{name: str(path) for name, path in files.items()}))
    camel = {"cert_file": "certFile", "key_file": "keyFile", "client_ca_file": "clientCaFile"}[field]
    assert f"tls.{camel} {bad}" in refused.value.message


def test_key_is_refused_when_it_is_another_certificates(issuer: Issuer, ours: Certificate) -> None:
    other = issuer.issue("other")
    with pytest.raises(MalformedError, match="key values mismatch"):
        tls_context(TlsConfig(cert_file=str(ours.cert), key_file=str(other.key)))


def test_listening_fails_naming_the_address_when_the_port_is_taken() -> None:
    with listen("127.0.0.1", 0) as taken, pytest.raises(K8sRdmaError) as refused:
        listen("127.0.0.1", taken.getsockname()[1])
    expected = "cannot listen on 127.0.0.1, port [0-9]+: Address already in use"
    assert re.fullmatch(expected, refused.value.message)


def test_listening_takes_both_families_when_no_address_is_given() -> None:
    with listen("", 0) as listener:
        port = listener.getsockname()[1]
        for host in ("127.0.0.1", "::1") if socket.has_dualstack_ipv6() else ("127.0.0.1",):
            socket.create_connection((host, port)).close()


def test_listening_takes_one_address_when_it_is_given() -> None:
    with listen("::1", 0) as listener:
        assert listener.getsockname()[0] == "::1"
