from __future__ import annotations

import pytest

from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.adopt import (
    AdoptedVf,
    AdoptReply,
    AdoptRequest,
    decode_adopt,
    decode_adopted,
    encode_adopt,
    encode_adopted,
    is_adopt,
)
from k8s_rdma.wire.cni_socket import Reply, SocketRequest, decode_request, encode_request

ADOPTED = AdoptedVf(
    pf="f0",
    pci="0000:03:00.0",
    vf=1,
    netdev=None,
    min_tx_rate=1,
    max_tx_rate=2,
    vlan=3,
    outcome="left alone",
    why="away",
)


def test_adopt_travels_in_the_frames_of_the_cni_executable() -> None:
    wanted = AdoptRequest(pf="f0", vf=1, dry_run=True)
    carried = decode_request(encode_request(encode_adopt(wanted, deadline_ms=7)))
    assert is_adopt(carried)
    assert decode_adopt(carried) == wanted
    assert carried.deadline_ms == 7


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"CNI_COMMAND": "ADD"},
        {"CNI_COMMAND": "ADD", "K8S_RDMA_COMMAND": "ADOPT"},
        {"K8S_RDMA_COMMAND": "X"},
    ],
)
def test_no_other_call_is_taken_for_adopt(env: dict[str, str]) -> None:
    assert not is_adopt(SocketRequest(env=env, stdin=b"{}"))


def test_reply_says_by_its_status_whether_anything_was_done() -> None:
    done, refused = AdoptReply(vfs=(ADOPTED,), unreadable=("x",)), AdoptReply(error="no such PF")
    assert [encode_adopted(each).exit_status for each in (done, refused)] == [0, 1]
    assert [decode_adopted(encode_adopted(each)) for each in (done, refused)] == [done, refused]


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (b'{"vf": -1}', r"\$\.vf"),
        (b'{"vfs": 1}', "vfs"),
        (b"", "adopt: "),
        (b'{"dry_run": 1}', r"\$\.dry_run"),
    ],
)
def test_request_that_is_wrong_is_refused_by_field(document: bytes, words: str) -> None:
    with pytest.raises(MalformedError, match=words):
        decode_adopt(SocketRequest(env={}, stdin=document))


def test_answer_that_is_wrong_is_refused_by_field() -> None:
    with pytest.raises(MalformedError, match=r"answer of the agent: .*\$\.vfs"):
        decode_adopted(Reply(exit_status=0, stdout=b'{"vfs": 1}'))
