"""Certificates for tests, made by openssl(1)."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

CONFIG = "[req]\ndistinguished_name = name\n[name]\n"


@dataclass(frozen=True)
class Certificate:
    cert: Path
    key: Path


@dataclass(frozen=True)
class Issuer:
    """An authority of our own. Two of the same directory differ in their names."""

    directory: Path
    name: str = "authority"

    @property
    def own(self) -> Certificate:
        return Certificate(self.directory / f"{self.name}.crt", self.directory / f"{self.name}.key")

    def make(self) -> Issuer:
        self._request(self.own, self.name, "-addext", "basicConstraints=critical,CA:TRUE")
        return self

    def issue(self, name: str, *addresses: str, alternative: tuple[str, ...] = ()) -> Certificate:
        """For 127.0.0.1 and more addresses, by whatever name; alternative: more names, as `DNS:a`."""
        made = Certificate(self.directory / f"{name}.crt", self.directory / f"{name}.key")
        signer = ["-CA", str(self.own.cert), "-CAkey", str(self.own.key)]
        names = ",".join([*(f"IP:{each}" for each in ("127.0.0.1", *addresses)), *alternative])
        self._request(made, name, *signer, "-addext", f"subjectAltName={names}")
        return made

    def _request(self, made: Certificate, name: str, *options: str) -> None:
        config = self.directory / "openssl.cnf"
        config.write_text(CONFIG)
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
