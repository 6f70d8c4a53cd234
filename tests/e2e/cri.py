"""The few calls of the Container Runtime Interface that start and stop a pod's sandbox, or ask for its image.

Source: k8s.io/cri-api, `pkg/apis/runtime/v1/api.proto`; protobuf's encoding; gRPC's `PROTOCOL-HTTP2`.
"""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, ResponseReceived, StreamEnded, TrailersReceived

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from k8s_rdma_demo.cluster.sandboxes import PodRef

_LENGTH_DELIMITED = 2
_PREFIX = 5
"""Of a gRPC message: whether it is compressed, and its length."""
_PID_OF_CONTAINER = 1
"""`NamespaceMode.CONTAINER`: kubelet has no PID namespace made for the pod unless its owner asks."""


class CriError(Exception):
    """The runtime's error instead of a reply."""


class CriRuntime:
    """A runtime's service on a Unix socket; a connection a call.

    cgroup_parent: of the sandboxes' cgroups.
    """

    def __init__(self, path: Path, *, cgroup_parent: str, deadline_s: float) -> None:
        self._path, self._cgroup_parent, self._deadline_s = path, cgroup_parent, deadline_s

    def run_sandbox(self, pod: PodRef, *, attempt: int = 0) -> str:
        """Make the pod's sandbox, the first one or a later one; its ID."""
        metadata = _field(1, pod.name) + _field(2, pod.uid) + _field(3, pod.namespace) + _number(4, attempt)
        linux = _field(1, self._cgroup_parent) + _field(2, _field(1, _number(2, _PID_OF_CONTAINER)))
        config = _field(1, metadata) + _map(7, pod.annotations) + _field(8, linux)
        return dict(_fields(self._call("RunPodSandbox", _field(1, config))))[1].decode()

    def stop_sandbox(self, sandbox: str) -> None:
        self._call("StopPodSandbox", _field(1, sandbox))

    def remove_sandbox(self, sandbox: str) -> None:
        self._call("RemovePodSandbox", _field(1, sandbox))

    def stop_container(self, container: str) -> None:
        """End a container at once."""
        self._call("StopContainer", _field(1, container))

    def execute(self, container: str, *command: str) -> str:
        """Run a program in a running container and return its output. Raise CriError if that is empty."""
        message = _field(1, container) + b"".join(_field(2, word) for word in command)
        said = dict(_fields(self._call("ExecSync", message)))
        if 1 not in said:
            raise CriError(f"{' '.join(command)}: {said.get(2, b'').decode()}")
        return said[1].decode()

    def network_problem(self) -> str:
        """Return why pods cannot have a network, as the runtime reports it to kubelet; empty if they can."""
        conditions = dict(_fields(self._call("Status", b"")))[1]
        for _, condition in _fields(conditions):
            told = {number: value.decode() for number, value in _fields(condition)}
            if told[1] == "NetworkReady":
                return told.get(4, "")
        raise CriError("Status: nothing is said of the network")

    def list_sandboxes(self) -> list[str]:
        reply = self._call("ListPodSandbox", b"")
        return [dict(_fields(item))[1].decode() for number, item in _fields(reply) if number == 1]

    def has_image(self, image: str) -> bool:
        """Report whether sandboxes and containers can be made of it, by its present name."""
        reply = self._call("ImageStatus", _field(1, _field(1, image)), service="ImageService")
        return 1 in dict(_fields(reply))

    def sandbox_address(self, sandbox: str) -> str:
        """Return the pod's address as kubelet gets it; without one, kubelet has the sandbox made again."""
        status = dict(_fields(self._call("PodSandboxStatus", _field(1, sandbox))))[1]
        return dict(_fields(dict(_fields(status))[5])).get(1, b"").decode()

    def sandbox_info(self, sandbox: str) -> dict[str, Any]:
        """Return details beyond the interface: OCI's specification; of containerd also the CNI result."""
        reply = self._call("PodSandboxStatus", _field(1, sandbox) + _number(2, 1))
        info = dict(dict(_fields(item)).values() for number, item in _fields(reply) if number == 2)
        return json.loads(info[b"info"])

    def _call(self, method: str, message: bytes, service: str = "RuntimeService") -> bytes:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(self._deadline_s)
            connection.connect(str(self._path))
            return _unary(connection, f"/runtime.v1.{service}/{method}", message)


def _unary(connection: socket.socket, path: str, message: bytes) -> bytes:
    http = H2Connection(H2Configuration(header_encoding="utf-8"))
    http.initiate_connection()
    headers = {":method": "POST", ":scheme": "http", ":authority": "localhost", ":path": path}
    headers |= {"te": "trailers", "content-type": "application/grpc"}
    http.send_headers(1, list(headers.items()))
    http.send_data(1, b"\0" + len(message).to_bytes(_PREFIX - 1) + message, end_stream=True)
    connection.sendall(http.data_to_send())
    reply, status = b"", {}
    while True:
        data = connection.recv(1 << 16)
        if not data:
            raise CriError(f"{path}: hung up")
        for event in http.receive_data(data):
            if isinstance(event, DataReceived):
                reply += event.data
                http.acknowledge_received_data(event.flow_controlled_length, 1)
            elif isinstance(event, ResponseReceived | TrailersReceived):
                status |= dict(event.headers)
            elif isinstance(event, StreamEnded):
                if status.get("grpc-status") != "0":
                    raise CriError(unquote(status.get("grpc-message", str(status))))
                return reply[_PREFIX:]
        connection.sendall(http.data_to_send())


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _field(number: int, value: bytes | str) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | _LENGTH_DELIMITED) + _varint(len(data)) + data


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _map(number: int, items: Mapping[str, str]) -> bytes:
    return b"".join(_field(number, _field(1, key) + _field(2, value)) for key, value in items.items())


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        number |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return number, at


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """A message's fields that have a length; numbers are passed over."""
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        value, at = _read_varint(data, at)
        if key & 7 == _LENGTH_DELIMITED:
            yield key >> 3, data[at : at + value]
            at += value
