"""Certificates of an exec plugin, by which a real kube-apiserver knows who asks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import yaml

from cluster.control_plane import write_kubeconfig
from cluster.real import obstacle, real
from http_server.certificates import Issuer
from k8s_rdma.kube.documents import Documents

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(obstacle() is not None, reason=str(obstacle()))]

REVIEWS = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
REVIEW = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}


def gives(directory: Path, name: str, expires: str) -> None:
    """The plugin, from now on."""
    made = Issuer(directory).issue(name)
    status = {
        "clientCertificateData": made.cert.read_text(),
        "clientKeyData": made.key.read_text(),
        "expirationTimestamp": expires,
    }
    plugin = directory / "plugin"
    plugin.write_text(f"#!/bin/sh\ncat <<'END'\n{json.dumps({'status': status})}\nEND\n")
    plugin.chmod(0o700)


def asker(api: Documents) -> str:
    return api.post(REVIEWS, REVIEW)["status"]["userInfo"]["username"]


async def test_certificates_of_a_plugin_are_taken_and_changed_when_they_expire(tmp_path: Path):
    async with real(tmp_path) as plane:
        kubeconfig = write_kubeconfig(tmp_path / "plugin.kubeconfig", plane, "")
        document = yaml.safe_load(kubeconfig.read_text())
        plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "./plugin"}
        document["users"][0]["user"] = {"exec": plugin}
        kubeconfig.write_text(yaml.safe_dump(document))
        gives(tmp_path, "first", "2001-01-01T00:00:00Z")
        with Documents(str(kubeconfig)) as api:
            assert asker(api) == "first"
            gives(tmp_path, "second", "2999-01-01T00:00:00Z")
            assert asker(api) == "second"
            gives(tmp_path, "third", "2999-01-01T00:00:00Z")
            assert asker(api) == "second"
