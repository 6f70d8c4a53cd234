"""Messages of gRPC methods as values."""

from __future__ import annotations

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.empty_pb2 import Empty

from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.protobuf import Method, empty_form, form

SECONDS = form(Duration, lambda seconds: Duration(seconds=seconds), lambda message: message.seconds)


def test_value_is_the_same_after_it_was_written_and_read():
    assert SECONDS.encode(300) == b"\x08\xac\x02"
    assert SECONDS.decode(b"\x08\xac\x02") == 300


def test_message_without_a_value_is_empty_and_its_fields_are_not_read():
    nothing = empty_form(Empty)
    assert nothing.encode(None) == b""
    assert nothing.decode(b"\x08\x01") is None


def test_bytes_that_are_no_message_are_refused_by_its_name():
    with pytest.raises(MalformedError, match=r"^Duration: 2 bytes that are no such message$"):
        SECONDS.decode(b"\x08\xac")


def test_path_of_a_method_has_the_service_with_its_package():
    method = Method(service="v1.Clock", name="Wait", request=SECONDS, answer=empty_form(Empty))
    assert method.path == "/v1.Clock/Wait"
