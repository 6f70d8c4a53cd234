"""Certificates for tests, made by openssl(1)."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

CONFIG = "[req]\ndistinguished_name = name\nx509_extensions = identifiers\n[name]\n[identifiers]\n"
KEY_IDENTIFIERS = "subjectKeyIdentifier = hash\nauthorityKeyIdentifier = keyid\n"
AUTHORITY = """[ca]
default_ca = ours
[ours]
database = {directory}/issued
new_certs_dir = {directory}
serial = {directory}/serial
default_md = sha256
policy = names
[names]
commonName = supplied
"""
NO_KEY_IDENTIFIERS = "subjectKeyIdentifier = none\nauthorityKeyIdentifier = none\n"


@dataclass(frozen=True)
class Certificate:
    cert: Path
    key: Path


@dataclass(frozen=True)
class Issuer:
    """An authority of our own. Two of the same directory differ in their names.

    strict: whether its certificates have all that RFC 5280 demands, and VERIFY_X509_STRICT asks for.
    """

    directory: Path
    name: str = "authority"
    strict: bool = True

    @property
    def own(self) -> Certificate:
        return Certificate(self.directory / f"{self.name}.crt", self.directory / f"{self.name}.key")

    def make(self, issuer: Issuer | None = None) -> Issuer:
        """Make its own certificate, signed by itself or by another authority."""
        usage = ["-addext", "keyUsage=critical,keyCertSign,cRLSign"] if self.strict else []
        signer = ["-CA", str(issuer.own.cert), "-CAkey", str(issuer.own.key)] if issuer else []
        self._request(self.own, self.name, *signer, "-addext", "basicConstraints=critical,CA:TRUE", *usage)
        return self

    def issue(self, name: str, *addresses: str, alternative: tuple[str, ...] = ()) -> Certificate:
        """For 127.0.0.1 and more addresses, by whatever name; alternative: more names, as `DNS:a`."""
        made = Certificate(self.directory / f"{name}.crt", self.directory / f"{name}.key")
        signer = ["-CA", str(self.own.cert), "-CAkey", str(self.own.key)]
        names = ",".join([*(f"IP:{each}" for each in ("127.0.0.1", *addresses)), *alternative])
        self._request(made, name, *signer, "-addext", f"subjectAltName={names}")
        return made

    def issue_expired(self, name: str) -> Certificate:
        """For 127.0.0.1, of a month in 2020."""
        made = Certificate(self.directory / f"{name}.crt", self.directory / f"{name}.key")
        request, extensions = self.directory / f"{name}.csr", self.directory / f"{name}.ext"
        config = self.directory / "authority.cnf"
        config.write_text(AUTHORITY.format(directory=self.directory))
        (self.directory / "issued").touch()
        extensions.write_text(f"subjectAltName = IP:127.0.0.1\n{KEY_IDENTIFIERS}")
        new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", str(made.key))
        self._openssl("req", "-new", *new_key, "-subj", f"/CN={name}", "-out", str(request))
        authority = ("-cert", str(self.own.cert), "-keyfile", str(self.own.key), "-create_serial", "-notext")
        dates = ("-startdate", "20200101000000Z", "-enddate", "20200201000000Z")
        files = ("-in", str(request), "-out", str(made.cert), "-extfile", str(extensions))
        self._openssl("ca", "-batch", "-config", str(config), *authority, *dates, *files)
        return made

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True)

    def _request(self, made: Certificate, name: str, *options: str) -> None:
        config = self.directory / "openssl.cnf"
        config.write_text(CONFIG + (KEY_IDENTIFIERS if self.strict else NO_KEY_IDENTIFIERS))
        subprocess.run(
            [
                *(
                    "openssl",
                    "req",
                    "-x509",
                    "-newkey",
                    "ec",
                    "-pkeyopt",
                    "ec_paramgen_curve:P-256",
                    "-nodes",
                ),
                *("-days", "2", "-subj", f"/CN={name}", "-out", str(made.cert), "-keyout", str(made.key)),
                *options,
            ],
            check=True,
            capture_output=True,
            env={**os.environ, "OPENSSL_CONF": str(config)},
        )
