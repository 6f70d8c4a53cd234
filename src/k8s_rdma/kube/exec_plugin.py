"""Exec plugins, which give a token or a certificate: what they are asked, and what they answer.

lightkube's own way of calling them leaves out what they are asked for, knows versions up to v1beta1, waits
for ever, and raises whatever an answer that it does not expect leads to.
Source: `ExecCredential` in client-go, pkg/apis/clientauthentication/v1; `refreshCredsLocked` in
plugin/pkg/client/auth/exec/exec.go.
"""

from __future__ import annotations

import json
import os
import subprocess
from base64 import b64encode
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from lightkube.config.models import NameValue
from lightkube.core.exceptions import ConfigError

from k8s_rdma.kube.tokens import Credential, usable_token

if TYPE_CHECKING:
    from lightkube.config.models import UserExec

_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


class _Status(msgspec.Struct, frozen=True):
    """What is empty counts as not set."""

    token: str | None = None
    certificate: str | None = msgspec.field(name="clientCertificateData", default=None)
    key: str | None = msgspec.field(name="clientKeyData", default=None)
    expires: Annotated[datetime, msgspec.Meta(tz=True)] | None = msgspec.field(
        name="expirationTimestamp", default=None
    )


class _ExecCredential(msgspec.Struct, frozen=True):
    status: _Status | None = None


def tell_plugin(plugin: UserExec, cluster: dict[str, Any], *, of_cluster: bool) -> None:
    """Have a plugin told what it is asked for; ConfigError for a version that is not spoken.

    cluster: an entry of a kubeconfig. of_cluster: whether the plugin is told of it.
    """
    if plugin.apiVersion not in _VERSIONS:
        msg = (
            f"exec plugin {plugin.command}: apiVersion {plugin.apiVersion!r}; wanted {' or '.join(_VERSIONS)}"
        )
        raise ConfigError(msg)
    spec: dict[str, Any] = {"interactive": False}
    if of_cluster:
        spec["cluster"] = _cluster_info(cluster)
    asked = {"apiVersion": plugin.apiVersion, "kind": "ExecCredential", "spec": spec}
    plugin.env = [*(plugin.env or ()), NameValue("KUBERNETES_EXEC_INFO", json.dumps(asked))]


def _cluster_info(cluster: dict[str, Any]) -> dict[str, Any]:
    """As `ExecCluster` has it: certificates by their bytes alone."""
    told = {
        key: value for key, value in cluster.items() if key not in ("certificate-authority", "extensions")
    }
    if file := cluster.get("certificate-authority"):
        told["certificate-authority-data"] = b64encode(Path(file).read_bytes()).decode()
    return told


def plugin_credential(plugin: UserExec, timeout_s: float) -> Credential:
    """Of a plugin that `tell_plugin` prepared; ConfigError says why it gives none. Blocks for timeout_s."""
    source = f"exec plugin {plugin.command}"
    try:
        answer = msgspec.json.decode(_answer(plugin, timeout_s), type=_ExecCredential)
    except (msgspec.MsgspecError, ValueError) as error:
        msg = f"{source}: its answer is no ExecCredential: {error}"
        raise ConfigError(msg) from None  # it may hold the answer
    status = answer.status or _Status()
    if bool(status.certificate) != bool(status.key):
        missing = "its key" if status.certificate else "the certificate"
        msg = f"{source}: gives one of certificate and key, and not {missing}"
        raise ConfigError(msg)
    if not status.token and not status.certificate:
        msg = f"{source}: gives neither a token nor a certificate"
        raise ConfigError(msg)
    return Credential(
        token=usable_token(status.token, source) if status.token else None,
        certificate=f"{status.certificate}\n{status.key}" if status.certificate else None,
        expires=status.expires,
    )


def _answer(plugin: UserExec, timeout_s: float) -> bytes:
    environment = {**os.environ, **{each.name: each.value for each in plugin.env or ()}}
    command = [plugin.command, *(plugin.args or ())]
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        msg = f"exec plugin {plugin.command}: no answer within {timeout_s:g} s"
        raise ConfigError(msg) from None  # it holds what the plugin wrote
    except (OSError, ValueError) as error:
        msg = f"exec plugin {plugin.command}: {getattr(error, 'strerror', None) or error}"
        raise ConfigError(msg) from error
    if done.returncode != 0:
        words = " ".join(done.stderr.decode(errors="replace").split())
        msg = f"exec plugin {plugin.command}: exit status {done.returncode}: {words}"
        raise ConfigError(msg)
    return done.stdout
