"""Messages as bytes, and how the socket reads any answers."""

from __future__ import annotations

import errno
import struct
from socket import MSG_TRUNC

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8s_rdma.linux.netlink.socket import (
    DUMP_INTR,
    NetlinkError,
    NetlinkSocket,
    attribute,
    attributes,
    nested,
    number,
    string,
    text,
    u32,
)

ERROR, DONE, ANSWER = 2, 3, 16
MULTI, CAPPED, WITH_TLVS = 0x2, 0x100, 0x200


class Scripted:
    """A connection that answers every request with the next of its scripts.

    A script is a list of datagrams; in each, a message is made for the sequence number of the request.
    """

    def __init__(self, *scripts):
        self._scripts = list(scripts)
        self._datagrams = []
        self.requests = 0

    def send(self, request):
        self.requests += 1
        (sequence,) = struct.unpack_from("=I", request, 8)
        for datagram in self._scripts.pop(0) if len(self._scripts) > 1 else self._scripts[0]:
            self._datagrams.append(b"".join(make(sequence) for make in datagram))
        return len(request)

    def recvmsg(self, size):
        if not self._datagrams:
            raise BlockingIOError
        datagram = self._datagrams.pop(0)
        return datagram[:size], [], MSG_TRUNC if len(datagram) > size else 0, None

    def close(self):
        pass


def message(kind, payload=b"", flags=0, *, late_by=0):
    def make(sequence):
        size = 16 + len(payload)
        return struct.pack("=IHHII", size, kind, flags, sequence - late_by, 0) + payload + bytes(-size % 4)

    return make


def answer(payload, flags=MULTI):
    return message(ANSWER, payload, flags)


def ended(status=0, flags=0, tail=b""):
    """NLMSG_ERROR: the status, and the header of the request that it answers."""
    return message(ERROR, struct.pack("=i", status) + struct.pack("=IHHII", 16, 1, 5, 1, 0) + tail, flags)


done = message(DONE, bytes(4), MULTI)


def socket_on(*scripts):
    connection = Scripted(*scripts)
    return NetlinkSocket(connection), connection


@given(st.dictionaries(st.integers(0, 0x3FFF), st.binary(max_size=40)))
def test_attributes_are_read_as_they_were_written(wanted):
    data = b"".join(attribute(kind, value) for kind, value in wanted.items())
    assert len(data) % 4 == 0
    assert attributes(data) == wanted


def test_attributes_are_found_when_nested_and_after_a_header():
    data = b"head" + nested(7, u32(1, 70_000), text(2, "rdma0"))
    inner = attributes(attributes(data, 4)[7])
    assert (number(inner[1]), string(inner[2])) == (70_000, "rdma0")


@given(st.binary(max_size=60))
def test_attributes_of_anything_at_all_are_read_to_an_end(data):
    attributes(data)


def test_answer_is_the_one_message_before_the_end():
    socket, _ = socket_on([[answer(b"x"), ended()]])
    assert socket.get(1, b"", "question") == b"x"


@pytest.mark.parametrize("answers", [[], [answer(b"x"), answer(b"y")]])
def test_answer_is_refused_when_there_is_not_exactly_one(answers):
    socket, _ = socket_on([[*answers, ended()]])
    with pytest.raises(NetlinkError, match=f"{len(answers)} answers") as failure:
        socket.get(1, b"", "question")
    assert failure.value.errno == errno.EPROTO


def test_dump_is_all_messages_over_several_datagrams():
    socket, _ = socket_on([[answer(b"abc"), answer(b"d")], [answer(b"e")], [done]])
    assert socket.dump(1, b"", "all") == [b"abc", b"d", b"e"]


def test_answers_to_an_earlier_request_are_skipped():
    late = [message(ANSWER, b"late", MULTI, late_by=1), message(DONE, bytes(4), MULTI, late_by=1)]
    socket, _ = socket_on([late, [answer(b"mine")], [done]])
    assert socket.dump(1, b"", "all") == [b"mine"]


@pytest.mark.parametrize("where", ["in an answer", "at the end"])
def test_dump_is_repeated_when_it_was_interrupted(where):
    interrupted = [answer(b"old", MULTI | (DUMP_INTR if where == "in an answer" else 0))]
    end = message(DONE, bytes(4), MULTI | (DUMP_INTR if where == "at the end" else 0))
    socket, connection = socket_on([[*interrupted, end]], [[answer(b"new"), done]])
    assert socket.dump(1, b"", "all") == [b"new"]
    assert connection.requests == 2


def test_dump_fails_when_it_is_interrupted_every_time():
    socket, connection = socket_on([[answer(b"old", MULTI | DUMP_INTR), done]])
    with pytest.raises(NetlinkError, match=r"all links: EINTR: .*40 times") as failure:
        socket.dump(1, b"", "all links")
    assert (failure.value.errno, connection.requests) == (errno.EINTR, 40)


def test_dump_fails_at_once_when_the_kernel_refuses_it():
    socket, connection = socket_on([[message(DONE, struct.pack("=i", -errno.EPERM), MULTI)]])
    with pytest.raises(NetlinkError) as failure:
        socket.dump(1, b"", "all links")
    assert (failure.value.errno, connection.requests) == (errno.EPERM, 1)


def test_error_names_the_failed_call_the_errno_and_the_explanation_of_the_kernel():
    explanation = text(1, "Unknown device type")
    socket, _ = socket_on([[ended(-errno.EOPNOTSUPP, CAPPED | WITH_TLVS, explanation)]])
    with pytest.raises(NetlinkError) as failure:
        socket.request(1, b"", "create p0")
    assert str(failure.value) in {
        f"create p0: {name}: Operation not supported (Unknown device type)"
        for name in ("ENOTSUP", "EOPNOTSUPP")
    }


def test_explanation_is_found_behind_the_whole_request_when_it_is_not_capped():
    request = struct.pack("=IHHII", 24, 1, 5, 1, 0) + bytes(8)
    payload = struct.pack("=i", -errno.EINVAL) + request + text(1, "No such thing")
    socket, _ = socket_on([[message(ERROR, payload, WITH_TLVS)]])
    with pytest.raises(NetlinkError, match="No such thing"):
        socket.request(1, b"", "create p0")


def test_request_fails_when_no_answer_comes():
    socket, _ = socket_on([])
    with pytest.raises(NetlinkError, match="no answer within") as failure:
        socket.request(1, b"", "create p0")
    assert failure.value.errno == errno.ETIMEDOUT


def test_answer_of_85_kib_is_read_whole():
    socket, _ = socket_on([[answer(bytes(85 << 10)), ended()]])
    assert len(socket.get(1, b"", "question")) == 85 << 10


@pytest.mark.parametrize("count", [1, 2])
def test_answer_is_refused_when_it_does_not_fit_the_buffer(count):
    """Also when the cut lies between two messages."""
    half = bytes((1 << 16) - 16)
    socket, _ = socket_on([[answer(half), answer(half), *[answer(b"more")] * count], [done]])
    with pytest.raises(NetlinkError, match="all VFs: EMSGSIZE") as failure:
        socket.dump(1, b"", "all VFs")
    assert failure.value.errno == errno.EMSGSIZE


def test_request_fails_when_the_answer_is_no_message():
    socket, _ = socket_on([[lambda _: bytes(16)]])
    with pytest.raises(NetlinkError) as failure:
        socket.request(1, b"", "create p0")
    assert failure.value.errno == errno.EPROTO


class Crowded:
    """A connection whose buffer holds the answers to so many requests.

    Further ones are lost, which the next read reports (ENOBUFS, netlink(7)), and all that follow until the
    buffer is empty.

    answers: the answers to each request, by its first byte.
    """

    def __init__(self, holds, answers):
        self._holds, self._answers, self._queue = holds, answers, []
        self._held, self._lost, self._untold = 0, False, False
        self.sent = []

    def send(self, datagram):
        start, number = 0, 0
        while start < len(datagram):
            size, _, _, sequence, _ = struct.unpack_from("=IHHII", datagram, start)
            self._take([make(sequence) for make in self._answers[datagram[start + 16 : start + 17]]])
            start, number = start + size, number + 1
        self.sent.append(number)
        return len(datagram)

    def _take(self, answers):
        if self._lost or self._held == self._holds:
            self._untold |= not self._lost
            self._lost = True
            return
        self._held += 1
        self._queue += answers

    def recvmsg(self, size, _ancillary=0, _flags=0):
        if self._untold:
            self._untold = False
            raise OSError(errno.ENOBUFS, "")
        if not self._queue:
            raise BlockingIOError
        datagram = self._queue.pop(0)
        if not self._queue:
            self._held, self._lost = 0, False
        return datagram[:size], [], 0, None

    def close(self):
        pass


QUERIES = [b"a\0\0\0", b"b\0\0\0", b"c\0\0\0"]
ANSWERS = {
    b"a": [answer(b"first"), ended()],
    b"b": [ended(-errno.EOPNOTSUPP)],
    b"c": [answer(b"last"), ended()],
}


@pytest.mark.parametrize("holds", [3, 2, 1])
def test_answers_to_queries_sent_together_are_those_of_each_query_and_its_errors(holds):
    """Also if the socket's buffer holds fewer: no answer is lost."""
    connection = Crowded(holds, ANSWERS)
    found = NetlinkSocket(connection).get_each(1, QUERIES, "all")
    assert found == [b"first", errno.EOPNOTSUPP, b"last"]
    assert connection.sent == ([3] if holds == 3 else [3, 1, 1, 1])


@pytest.mark.parametrize("number", [0, 2])
def test_query_sent_with_more_is_refused_when_there_is_not_exactly_one_answer(number):
    answers = ANSWERS | {b"c": [answer(b"x")] * number + [ended()]}
    with pytest.raises(NetlinkError, match=f"all: .*{number} answers") as failure:
        NetlinkSocket(Crowded(3, answers)).get_each(1, QUERIES, "all")
    assert failure.value.errno == errno.EPROTO


def test_queries_sent_together_fail_when_one_is_never_answered():
    with pytest.raises(NetlinkError, match="no answer within"):
        NetlinkSocket(Crowded(3, ANSWERS | {b"c": []})).get_each(1, QUERIES, "all")
