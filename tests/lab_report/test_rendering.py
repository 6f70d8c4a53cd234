"""The document that an evaluation becomes."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import pytest

from lab.report.command import DOCUMENT, RECORD
from lab.report.picture import picture
from lab.report.render import render
from lab.report.result import Result, load, save

if TYPE_CHECKING:
    from pathlib import Path

NUMBER = re.compile(r"[-+]?\d[\d.,:-]*%?")


@pytest.fixture
def result() -> Result:
    return load(RECORD)


def without_numbers(document: str) -> str:
    return NUMBER.sub("#", document)


def section(document: str, title: str) -> str:
    return document.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_document_is_that_of_the_recorded_run(result: Result) -> None:
    assert DOCUMENT.read_text() == render(result)


def test_two_runs_differ_in_numbers_alone(result: Result) -> None:
    other = replace(
        result,
        conditions=replace(result.conditions, date="2031-12-24", load=17.25, repeated=31),
        pairs=tuple(
            replace(pair, tcp_mbps=pair.tcp_mbps * 1.7, verbs_mbps=pair.verbs_mbps * 0.4)
            for pair in result.pairs
        ),
        timed=tuple(replace(each, milliseconds=(5.0, 1234.5, 7.0)) for each in result.timed),
    )
    assert render(other) != render(result)
    assert without_numbers(render(other)) == without_numbers(render(result))


def test_result_is_read_back_as_it_was_kept(result: Result, tmp_path: Path) -> None:
    save(result, tmp_path / "kept.json")
    assert load(tmp_path / "kept.json") == result


def test_record_that_lacks_something_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "kept.json").write_text('{"conditions": {"date": "2031-12-24"}}')
    with pytest.raises(msgspec.ValidationError, match="product"):
        load(tmp_path / "kept.json")


def test_every_pod_is_in_the_picture_on_its_node_with_its_vfs(result: Result) -> None:
    drawn = picture(result.nodes, result.pods)
    for pod in result.pods:
        assert (pod.name in drawn) == bool(pod.node)
    held = [each for pod in result.pods for each in pod.interfaces]
    assert len(re.findall(r"\beth\d+/\d+\b", drawn)) == len(held)


def test_boxes_of_the_picture_are_closed(result: Result) -> None:
    first, *rows, bottom, _, wire = picture(result.nodes, result.pods).splitlines()[1:]
    edges = [at for at, letter in enumerate(first) if letter == "+"]
    assert len(edges) == 2 * len(result.nodes)
    for row in rows:
        assert [at for at, letter in enumerate(row) if letter == "|"] == edges
    assert bottom[edges[0]] == bottom[edges[-1]] == "+"
    assert wire.count("+") == sum(len(node.pfs) for node in result.nodes)


def test_pod_that_fits_nowhere_is_reported_in_the_words_of_the_scheduler(result: Result) -> None:
    (refused,) = [pod for pod in result.pods if not pod.node]
    assert refused.refused in section(render(result), "Pods and nodes")


def test_throughput_shows_the_least_and_the_most_beside_a_cap(result: Result) -> None:
    pair = next(each for each in result.pairs if each.source == "capped-8")
    slow = replace(pair, tcp_mbps=4 * 1448 / 1514)
    pairs = tuple(slow if each is pair else each for each in result.pairs)
    (row,) = [
        line
        for line in section(render(replace(result, pairs=pairs)), "Throughput").splitlines()
        if line.startswith("| `capped-8`") and "4.00" in line
    ]
    assert re.search(r"\| 8 \| -50\.0% to [+-]\d\.\d% \|$", row)


def test_unreached_pod_is_reported(result: Result) -> None:
    lost = replace(result.pairs[0], ping=False, rping=False)
    shown = section(render(replace(result, pairs=(lost, *result.pairs[1:]))), "Connectivity")
    assert shown.count("| nothing |") == 1


def test_ratio_is_ours_by_the_others(result: Result) -> None:
    timed = tuple(
        replace(
            each, milliseconds=(30.0, 40.0, 50.0) if each.plugin == "k8s-rdma-cni" else (10.0, 20.0, 30.0)
        )
        for each in result.timed
    )
    shown = section(render(replace(result, timed=timed)), "ADD and DEL beside another plugin")
    assert "| ADD | 3 | 40 ms, 48 ms | 20 ms, 28 ms | 2.00 | 1.71 |" in shown
