from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8s_rdma.deviceplugin.resource import (
    Followers,
    ResourceEndpoint,
    check_path,
    is_served,
    open_endpoint,
    socket_at,
    socket_name,
)
from k8s_rdma.errors import K8sRdmaError, MalformedError
from k8s_rdma.kube.grpc_calls import answers, connect, stream_handler
from k8s_rdma.wire.device_plugin import LIST_AND_WATCH
from k8s_rdma.wire.protobuf import Form, Method
from process_status import resident_kib

if TYPE_CHECKING:
    from k8s_rdma.deviceplugin.resource import Handlers


LISTS: Method[None, bytes] = Method(
    service=LIST_AND_WATCH.service,
    name=LIST_AND_WATCH.name,
    request=LIST_AND_WATCH.request,
    answer=Form(encode=bytes, decode=bytes),
    streams=True,
)

resources = st.from_regex(
    r"[a-z0-9]([-a-z0-9.]{0,100}[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", fullmatch=True
)


def handlers(followers: Followers) -> Handlers:
    return {LISTS: stream_handler(LISTS, followers.follow)}


async def opened(path: Path, message: bytes = b"list") -> ResourceEndpoint:
    followers = Followers(message, lambda: None)
    return await open_endpoint(path, handlers(followers), followers)


def names(directory: Path) -> list[str]:
    return [each.name for each in directory.iterdir()]


@given(st.lists(resources, min_size=2, max_size=5, unique=True))
def test_resources_have_sockets_of_different_and_short_names(names: list[str]) -> None:
    sockets = [socket_name(name) for name in names]
    assert len(set(sockets)) == len(names)
    assert all(len(each) <= 60 and "/" not in each for each in sockets)


def test_names_that_begin_alike_and_are_long_differ() -> None:
    assert socket_name("a" * 80 + "/x") != socket_name("a" * 80 + "/y")
    assert socket_name("tencent.com/rdma") == "rdma.sock"


def test_longest_name_fits_into_kubelets_directory_and_too_long_a_directory_is_refused() -> None:
    name = socket_name("d" * 253 + "/" + "n" * 63)
    check_path(Path("/var/lib/kubelet/device-plugins") / name)
    with pytest.raises(MalformedError, match="kubeletDir"):
        check_path(Path("/" + "x" * 60) / name)


@pytest.mark.anyio
async def test_followers_get_the_list_at_once_each_other_one_and_an_end(tmp_path: Path) -> None:
    changes: list[int] = []
    followers = Followers(b"1", lambda: changes.append(followers.count))
    endpoint = await open_endpoint(tmp_path / "a.sock", handlers(followers), followers)
    async with connect(endpoint.path) as channel:
        one, other = answers(channel, LISTS, None), answers(channel, LISTS, None)
        assert [await anext(one), await anext(other)] == [b"1", b"1"]
        followers.publish(b"2")
        assert [await anext(one), await anext(other)] == [b"2", b"2"]
        followers.publish(b"2")
        followers.publish(b"3")
        assert [await anext(one), await anext(other)] == [b"3", b"3"]
        await other.aclose()
        await endpoint.close()
        assert await anext(one, None) is None
    assert max(changes) == 2
    assert changes[-1] == 0


@pytest.mark.anyio
async def test_new_endpoint_replaces_an_existing_one_and_the_old_one_leaves_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a 100%.sock"  # a URI has these otherwise
    path.write_text("no socket")
    old = await opened(path)
    new = await opened(path, b"new")
    assert not old.exists()
    await old.close()
    assert new.exists()
    async with connect(path) as channel:
        assert await anext(answers(channel, LISTS, None)) == b"new"
    await new.close()
    assert names(tmp_path) == []


@pytest.mark.anyio
async def test_impossible_endpoint_is_refused_and_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(K8sRdmaError, match=r"cannot serve at .*: there is no directory"):
        await opened(tmp_path / "missing" / "a.sock")
    (tmp_path / "a.sock").mkdir()
    with pytest.raises(K8sRdmaError, match=r"cannot serve at .*: Is a directory"):
        await opened(tmp_path / "a.sock")
    assert names(tmp_path) == ["a.sock"]


@pytest.mark.anyio
async def test_endpoints_that_cannot_be_there_leave_no_memory(tmp_path: Path) -> None:
    """One is tried each second while there is no directory: a day has 86,400 of these."""
    sizes = []
    for _ in range(2):
        for _ in range(1000):
            with pytest.raises(K8sRdmaError):
                await opened(tmp_path / "missing" / "a.sock")
        sizes.append(resident_kib("self"))
    assert sizes[1] < sizes[0] + 1024


@pytest.mark.anyio
@pytest.mark.parametrize("steps", [1, 2, 3])
async def test_endpoint_that_is_given_up_before_it_serves_leaves_no_file(tmp_path: Path, steps: int) -> None:
    opening = asyncio.ensure_future(opened(tmp_path / "a.sock"))
    for _ in range(steps):
        await asyncio.sleep(0)
    opening.cancel()
    [given_up] = await asyncio.gather(opening, return_exceptions=True)
    assert isinstance(given_up, asyncio.CancelledError)
    assert names(tmp_path) == []


def test_socket_is_served_while_a_process_listens(tmp_path: Path) -> None:
    path = tmp_path / "s"
    assert socket_at(path) is None
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        first = socket_at(path)
        assert first is not None
        assert not is_served(path)
        listener.listen(0)
        assert all(is_served(path) for _ in range(5)), "also when the queue is full"
    assert not is_served(path)
    path.unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        assert socket_at(path) != first
    path.unlink()
    path.write_text("")
    assert socket_at(path) is None
