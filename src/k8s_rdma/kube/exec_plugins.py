"""Exec plugins: programs that a kubeconfig names for credentials, such as `kubelogin`.

A command's plugin may interact with the user, as with kubectl. It writes to the command's standard error,
reads its standard input if that is a terminal, and may take its time, for example until a device code is
confirmed in a browser. A process's plugin has neither, and a time limit.

Source: `ExecCredential` in pkg/apis/clientauthentication/v1; `refreshCredsLocked` and `newAuthenticator` in
client-go, plugin/pkg/client/auth/exec/exec.go; `ExecInteractiveMode` in tools/clientcmd/api/types.go.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from lightkube.core.exceptions import ConfigError

from k8s_rdma.config.bounded_files import read_named_file
from k8s_rdma.kube.credentials import Credential, usable_token
from k8s_rdma.wire.nesting import require_shallow

if TYPE_CHECKING:
    from k8s_rdma.kube.kubeconfig import ApiServer, ExecPlugin, KubeconfigCluster

_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_MODES = ("Never", "IfAvailable", "Always")
_CONFIG_EXTENSION = "client.authentication.k8s.io/exec"


class _Status(msgspec.Struct, frozen=True):
    """The status of an ExecCredential; empty counts as not set."""

    token: str | None = None
    certificate: str | None = msgspec.field(name="clientCertificateData", default=None)
    key: str | None = msgspec.field(name="clientKeyData", default=None)
    expires: Annotated[datetime, msgspec.Meta(tz=True)] | None = msgspec.field(
        name="expirationTimestamp", default=None
    )


class _ExecCredential(msgspec.Struct, frozen=True):
    status: _Status | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginCall:
    """A plugin and its input.

    timeout_s: None for a command's, which also has its input and output.
    environment: in addition to our own.
    is_interactive: whether it reads our standard input.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    install_hint: str = ""
    is_interactive: bool = False
    timeout_s: float | None = None

    @property
    def source(self) -> str:
        """The plugin's name in messages."""
        return f"exec plugin {self.command[0]}"


def prepare_plugin(server: ApiServer, plugin: ExecPlugin, timeout_s: float | None) -> PluginCall:
    """Prepare a plugin's input. ConfigError for an unsupported version, and for a missing terminal.

    timeout_s: None for a plugin of a command.
    """
    source = f"user {server.user_name}: exec"
    if not plugin.command:
        msg = f"{source}: command: not set; wanted a program"
        raise ConfigError(msg)
    if plugin.api_version not in _VERSIONS:
        msg = (
            f"exec plugin {plugin.command}: apiVersion {plugin.api_version!r}; "
            f"wanted {' or '.join(_VERSIONS)}"
        )
        raise ConfigError(msg)
    is_interactive = _is_interactive(plugin, source, is_command=timeout_s is None)
    spec: dict[str, Any] = {"interactive": is_interactive}
    if plugin.provide_cluster_info:
        spec["cluster"] = _cluster_info(server)
    document = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}
    variables = {variable.name: variable.value for variable in plugin.env}
    return PluginCall(
        command=(plugin.command, *plugin.args),
        environment=variables | {"KUBERNETES_EXEC_INFO": json.dumps(document)},
        install_hint=plugin.install_hint,
        is_interactive=is_interactive,
        timeout_s=timeout_s,
    )


def _is_interactive(plugin: ExecPlugin, source: str, *, is_command: bool) -> bool:
    """Report whether the plugin gets our standard input, which a terminal alone is for."""
    mode = plugin.interactive_mode or "IfAvailable"
    if mode not in _MODES:
        msg = f"{source}: interactiveMode: {mode!r}; wanted {', '.join(_MODES)}"
        raise ConfigError(msg)
    has_terminal = is_command and sys.stdin is not None and sys.stdin.isatty()
    if mode == "Always" and not has_terminal:
        msg = f"{source}: interactiveMode: Always, and the standard input is no terminal"
        raise ConfigError(msg)
    return has_terminal and mode != "Never"


def _cluster_info(server: ApiServer) -> dict[str, Any]:
    """Return the cluster in the form of `ExecCluster`: certificates by their bytes alone."""
    cluster: KubeconfigCluster = server.cluster
    authority = cluster.certificate_authority_data
    if cluster.certificate_authority:
        try:
            authority = b64encode(read_named_file(cluster.certificate_authority)).decode()
        except OSError as error:
            msg = f"cluster {server.cluster_name}: certificate-authority {error.filename}: {error.strerror}"
            raise ConfigError(msg) from error
    info = {
        "server": cluster.server,
        "tls-server-name": cluster.tls_server_name,
        "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify,
        "certificate-authority-data": authority,
        "proxy-url": cluster.proxy_url,
        "disable-compression": cluster.disable_compression,
        "config": next(
            (extension.extension for extension in cluster.extensions if extension.name == _CONFIG_EXTENSION),
            None,
        ),
    }
    return {key: value for key, value in info.items() if value}


def plugin_credential(call: PluginCall) -> Credential:
    """Get a credential from a plugin; ConfigError gives the reason of a failure. Blocks until it ends."""
    try:
        document = _answer(call)
        require_shallow(document)
        answer = msgspec.json.decode(document, type=_ExecCredential)
    except ValueError as error:
        msg = f"{call.source}: its answer is no ExecCredential: {error}"
        raise ConfigError(msg) from None  # it may hold the answer
    status = answer.status or _Status()
    if bool(status.certificate) != bool(status.key):
        missing = "its key" if status.certificate else "the certificate"
        msg = f"{call.source}: gives one of certificate and key, and not {missing}"
        raise ConfigError(msg)
    if not status.token and not status.certificate:
        msg = f"{call.source}: gives neither a token nor a certificate"
        raise ConfigError(msg)
    return Credential(
        token=usable_token(status.token, call.source) if status.token else None,
        certificate=f"{status.certificate}\n{status.key}" if status.certificate else None,
        expires=status.expires,
    )


def _answer(call: PluginCall) -> bytes:
    is_process = call.timeout_s is not None
    try:
        process = subprocess.run(
            call.command,
            env={**os.environ, **call.environment},
            stdin=None if call.is_interactive else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if is_process else None,
            timeout=call.timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        msg = f"{call.source}: no answer within {call.timeout_s:g} s"
        raise ConfigError(msg) from None  # it holds the plugin's output
    except (OSError, ValueError) as error:
        hint = f"; {' '.join(call.install_hint.split())}" if call.install_hint else ""
        msg = f"{call.source}: {getattr(error, 'strerror', None) or error}{hint}"
        raise ConfigError(msg) from error
    if process.returncode != 0:
        output = " ".join((process.stderr or b"").decode(errors="replace").split())
        msg = f"{call.source}: exit status {process.returncode}{f': {output}' if output else ''}"
        raise ConfigError(msg)
    return process.stdout
