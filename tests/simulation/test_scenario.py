from __future__ import annotations

from random import Random
from statistics import fmean, median
from typing import TYPE_CHECKING

import msgspec
import pytest

from k8s_rdma.errors import MalformedError
from k8s_rdma_simulation.scenario import Distribution, load_scenario, load_trace

if TYPE_CHECKING:
    from pathlib import Path

TEXT = """\
name: test
duration: 100
nodes:
- pfs: [{linkMbps: 100000, vfs: 8}]
arrivals: {exponential: 1}
pods:
- name: a
  interfaces: [{min_tx_rate: 1000}]
  lifetime: {fixed: 1}
"""


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "scenario.yaml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("duration: 100", "duration: -1", "duration"),
        ("duration: 100", "duration: .inf", "duration"),
        ("duration: 100", "duration: .nan", "duration"),
        ("duration: 100", "durations: 100", "durations"),
        ("min_tx_rate: 1000", "min_tx_rate: -5", "min_tx_rate"),
        ("min_tx_rate: 1000", "min_rate: 5", "min_rate"),
        ("linkMbps: 100000", "linkMbps: 0", "linkMbps"),
        ("{exponential: 1}", "{exponential: 0}", "exponential"),
        ("{exponential: 1}", "{exponential: 1, fixed: 2}", "exactly one of fixed, exponential"),
        ("{exponential: 1}", "{}", "exactly one of fixed, exponential"),
        ("{exponential: 1}", "{uniform: [3, 2]}", "uniform"),
        ("{exponential: 1}", "{lognormal: {median: 1, sigma: -1}}", "sigma"),
        ("{exponential: 1}", "{empirical: []}", "empirical"),
        ("arrivals: {exponential: 1}\n", "", "exactly one of arrivals and trace"),
        ("- pfs:", "- count: 10001\n  pfs:", "count"),
        ("duration: 100", "duration: 100\nwarmUp: 100", "warmUp"),
        ("  lifetime: {fixed: 1}\n", "  lifetime: {fixed: 1}\n  policy: best\n", "policy"),
    ],
)
def test_faulty_scenario_is_refused_by_file_and_field(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    assert TEXT.count(old) == 1
    path = write(tmp_path, TEXT.replace(old, new))
    with pytest.raises(MalformedError) as refusal:
        load_scenario(path)
    assert path in str(refusal.value)
    assert message in str(refusal.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("duration: 100", "duration: -1", "line 2: duration: -1"),
        ("vfs: 8", "vfs: 8, speed: 1", "line 4: nodes[0].pfs[0].speed: unknown key"),
        ("arrivals:", "trace: a.csv\narrivals:", "line 6: arrivals: exactly one of arrivals and trace"),
        ("min_tx_rate: 1000", "min_tx_rate: -5", "line 8: pods[0].interfaces[0].min_tx_rate: "),
        ("min_tx_rate: 1000", "min_tx_rate: 1, min_tx_rate: 2", "line 8, column 33: the key 'min_tx_rate'"),
        ("{fixed: 1}", "{fixed: 1, exponential: 1}", "line 9: pods[0].lifetime.fixed: exactly one of"),
        ("  lifetime:", "  policy: best\n  lifetime:", "line 9: pods[0].policy: "),
        ("{fixed: 1}", "{fixed: 1", "line 10, column 1: "),
    ],
)
def test_faulty_scenario_is_refused_by_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = write(tmp_path, TEXT.replace(old, new))
    with pytest.raises(MalformedError) as refusal:
        load_scenario(path)
    assert refusal.value.message.startswith(f"{path}: {message}")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("arrival,lifetime_s,shape\n", "line 1: wanted the columns arrival_s,lifetime_s,shape"),
        ("arrival_s,lifetime_s,shape\n1,2,a\n0.5,2,a\n", "line 3: arrival_s: earlier"),
        ("arrival_s,lifetime_s,shape\n1,-2,a\n", "line 2: lifetime_s: wanted seconds"),
        ("arrival_s,lifetime_s,shape\n1,inf,a\n", "line 2: lifetime_s: wanted seconds"),
        ("arrival_s,lifetime_s,shape\n1\n", "line 2: lifetime_s: wanted seconds"),
        ("arrival_s,lifetime_s,shape\n1,2,b\n", "line 2: shape: 'b' is none"),
        (None, "No such file"),
    ],
)
def test_faulty_trace_is_refused_by_line_and_column(tmp_path: Path, rows: str | None, message: str) -> None:
    path = write(tmp_path, TEXT.replace("arrivals: {exponential: 1}", "trace: pods.csv"))
    if rows is not None:
        (tmp_path / "pods.csv").write_text(rows)
    with pytest.raises(MalformedError, match=message) as refusal:
        load_trace(load_scenario(path), path)
    assert "pods.csv" in str(refusal.value)


@pytest.mark.parametrize(
    ("document", "mean", "middle"),
    [
        ({"fixed": 3.0}, 3.0, 3.0),
        ({"exponential": 10.0}, 10.0, 6.93),
        ({"uniform": [1.0, 3.0]}, 2.0, 2.0),
        ({"lognormal": {"median": 5.0, "sigma": 0.5}}, 5.67, 5.0),
        ({"empirical": [1.0, 2.0, 6.0]}, 3.0, 2.0),
    ],
)
def test_distribution_has_its_mean_and_median(
    document: dict[str, object], mean: float, middle: float
) -> None:
    distribution, random = msgspec.convert(document, Distribution), Random(1)
    drawn = [distribution.draw(random) for _ in range(20_000)]
    assert fmean(drawn) == pytest.approx(mean, rel=0.05)
    assert median(drawn) == pytest.approx(middle, rel=0.05)
