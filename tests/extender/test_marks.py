"""After which moments versions were written."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from k8s_rdma.extender.rdmanode_informer import NEVER, Marks


def test_version_was_written_after_the_last_moment_at_which_the_server_had_a_smaller_one() -> None:
    marks = Marks()
    for moment, version in ((1.0, 10), (2.0, 10), (3.0, 15)):
        marks.add(moment, version)
    assert [marks.newest_before(version) for version in (9, 10, 11, 15, 16)] == [NEVER, NEVER, 2.0, 2.0, 3.0]


def test_versions_of_a_backup_begin_anew() -> None:
    marks = Marks()
    marks.add(1.0, 100)
    marks.add(2.0, 50)
    assert (marks.newest_before(60), marks.newest_before(50)) == (2.0, NEVER)


@given(st.lists(st.sampled_from(["write", "ask"]), max_size=2000))
def test_no_version_was_written_before_its_moment(steps: list[str]) -> None:
    marks, version, written = Marks(), 0, []
    for moment, step in enumerate(steps):
        if step == "write":
            version += 1
            written.append((version, float(moment)))
        else:
            marks.add(float(moment), version)
    assert all(marks.newest_before(version) < at for version, at in written)
