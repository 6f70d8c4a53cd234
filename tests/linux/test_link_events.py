"""Whoever watches is told of link changes, and of nothing once it ended."""

from __future__ import annotations

import os
import threading

import pytest

from contract.linux_lab import needs_namespaces
from k8s_rdma.linux.link_events import LinkEvents
from k8s_rdma.linux.netns import create_namespace, entered
from k8s_rdma.linux.rtnl import Rtnl, named, of_kind

pytestmark = needs_namespaces
DEADLINE_S = 10


@pytest.fixture
def rtnl():
    namespace = create_namespace()
    with entered(namespace), Rtnl() as opened:
        yield opened
    os.close(namespace)


def test_watcher_is_told_when_a_link_comes_changes_and_goes(rtnl):
    told = threading.Event()
    events = LinkEvents(told.set)
    rtnl.create("create", named("a"), of_kind("bridge"))
    index = rtnl.link("a").index
    for change in (
        lambda: rtnl.change(index, "up", up=True),
        lambda: rtnl.change(index, "rename", named("b")),
        lambda: rtnl.delete(index, "delete"),
    ):
        assert told.wait(DEADLINE_S)
        told.clear()
        change()
    assert told.wait(DEADLINE_S)
    events.close()


def test_watcher_is_told_of_one_namespace_only_and_not_after_the_end(rtnl):
    told, other = [], create_namespace()
    with entered(other):
        events = LinkEvents(lambda: told.append(True))
    rtnl.create("create", named("a"), of_kind("bridge"))
    events.close()
    events.close()
    with Rtnl(other) as there:
        there.create("create", named("a"), of_kind("bridge"))
    os.close(other)
    assert told == []


def test_watcher_is_told_when_more_changed_than_the_queue_holds(rtnl):
    working, told_again = threading.Event(), threading.Event()
    calls = []

    def changed():
        calls.append(True)
        if len(calls) == 1:
            assert working.wait(DEADLINE_S)
        else:
            told_again.set()

    events = LinkEvents(changed)
    rtnl.create("create", named("a"), of_kind("bridge"))
    index = rtnl.link("a").index
    for number in range(1000):
        rtnl.change(index, "toggle", up=number % 2 == 0)
    working.set()
    assert told_again.wait(DEADLINE_S)
    events.close()
