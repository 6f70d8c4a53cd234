"""A method of a gRPC service: its path, and its messages as dataclasses.

Serializers belong to the call, in a client as in a server, so that neither sees protobuf's own types.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from google.protobuf.message import DecodeError, Message

from k8s_rdma.errors import MalformedError

Question = TypeVar("Question")
Answer = TypeVar("Answer")
M = TypeVar("M", bound=Message)
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Form(Generic[Value]):
    """A message on the wire. `decode` raises MalformedError."""

    encode: Callable[[Value], bytes]
    decode: Callable[[bytes], Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Method(Generic[Question, Answer]):
    """service: with its package, `v1beta1.DevicePlugin`. streams: whether there are many answers."""

    service: str
    name: str
    request: Form[Question]
    answer: Form[Answer]
    streams: bool = False

    @property
    def path(self) -> str:
        """The method's HTTP/2 path, such as `/v1beta1.DevicePlugin/Allocate`."""
        return f"/{self.service}/{self.name}"


def form(
    message: type[M], to_message: Callable[[Value], M], from_message: Callable[[M], Value]
) -> Form[Value]:
    """Return the form of a message that is made of a value, and read as one."""

    def encode(value: Value) -> bytes:
        return to_message(value).SerializeToString()

    def decode(data: bytes) -> Value:
        read = message()
        try:
            read.ParseFromString(data)
        except DecodeError as error:
            raise MalformedError(
                f"{message.DESCRIPTOR.name}: {len(data)} bytes that are no such message"
            ) from error
        return from_message(read)

    return Form(encode=encode, decode=decode)


def empty_form(message: type[M]) -> Form[None]:
    """Return the form of a message without a value; its fields stay at their defaults and are not read."""
    return form(message, lambda _: message(), lambda _: None)
