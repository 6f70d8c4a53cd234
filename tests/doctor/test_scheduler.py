"""Findings on kube-scheduler's configuration, beside the table of cases."""

from __future__ import annotations

import pytest
import yaml

from doctor.cases.scheduler import (
    DEFAULTS,
    RECOMMENDED,
    SCHEDULERS,
    SECOND,
    beside_second,
    registered,
    scheduler_text,
)
from k8s_rdma.config.extender import ExtenderConfig
from k8s_rdma.doctor.cluster.scheduler import SchedulerFacts, SchedulerFile, profiles
from k8s_rdma.doctor.finding import Severity, worst

WITHOUT_BIND = ExtenderConfig(binder="scheduler", allow_unplaced=True)


@pytest.mark.parametrize("name", ["recommended", "preemption", "second-scheduler"])
def test_examples_of_configurations_are_in_order(name):
    found = scheduler_text((SCHEDULERS / f"{name}.yaml").read_text())
    assert worst(found) is Severity.OK


def test_example_without_a_bind_verb_is_reported_with_its_consequence():
    found = scheduler_text((SCHEDULERS / "filter-only.yaml").read_text(), WITHOUT_BIND)
    told = {each.id for each in found if each.severity.rank > Severity.NOTE.rank}
    assert told == {"scheduler-every-pod", "scheduler-whole-nodes"}


def test_extender_of_another_project_is_not_ours():
    [found] = registered(urlPrefix="https://gpu.example/api", filterVerb="filter")
    assert found.id == "scheduler-no-extender"
    assert "https://gpu.example/api" in found.found


@pytest.mark.parametrize(
    ("timeout", "short"), [("10s", False), ("1m30s", False), ("9s", True), (None, True), ("500ms", True)]
)
def test_timeouts_are_read_as_go_writes_them(timeout, short):
    assert any(each.id == "scheduler-short-timeout" for each in registered(httpTimeout=timeout)) is short


def names(text: str) -> list[tuple[str, bool]]:
    facts = SchedulerFacts(files=(SchedulerFile(location="f", text=text),), extender=DEFAULTS)
    return [(each.name, each.has_extender) for each in profiles(facts)]


def test_schedulers_are_known_by_their_profiles():
    assert names((SCHEDULERS / "recommended.yaml").read_text()) == [("default-scheduler", True)]
    assert names(str(SECOND.text)) == [("rdma-scheduler", True)]
    two = {"kind": "KubeSchedulerConfiguration", "profiles": [{"schedulerName": "a"}, {}]}
    assert names(yaml.safe_dump(two)) == [("a", False), ("default-scheduler", False)]
    assert names("kind: Pod") == []


@pytest.mark.parametrize("key", ["profiles", "extenders"])
@pytest.mark.parametrize("value", [5, True, "a", {"a": 1}])
def test_configuration_with_malformed_lists_is_reported_and_has_no_schedulers(key, value):
    text = yaml.safe_dump({**RECOMMENDED, key: value})
    [found] = scheduler_text(text)
    assert (found.id, found.found) == ("scheduler-unreadable", f"cannot be used: {key}: wanted a list")
    assert names(text) == []
    assert worst(beside_second(text)).rank <= Severity.NOTE.rank


def test_configuration_without_profiles_is_that_of_the_default_scheduler():
    assert names(yaml.safe_dump(RECOMMENDED | {"profiles": None})) == [("default-scheduler", True)]


def test_scheduler_that_asks_is_named():
    [*_, second] = beside_second(None, unset=True)
    assert second.found.startswith("rdma-scheduler asks the extender at ")


@pytest.mark.parametrize("text", [None, "kind: Pod", (SCHEDULERS / "filter-only.yaml").read_text()])
def test_first_scheduler_need_not_ask_beside_a_second(text):
    without = text and text.replace("extenders:", "others:")
    assert worst(beside_second(without)).rank <= Severity.NOTE.rank
