"""Faults for which kube-scheduler refuses its file, by field, beside files that it takes."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from doctor.cases.scheduler import GPU_SHARE, OURS, RECOMMENDED, SCHEDULERS
from k8s_rdma.doctor.cluster.scheduler_refusals import (
    binders,
    managed_twice,
    shape_refusals,
    value_refusals,
)


def with_extender(**keys: Any) -> dict[str, Any]:
    return {"extenders": [keys]}


@pytest.mark.parametrize("path", sorted(SCHEDULERS.glob("*.yaml")), ids=lambda path: path.stem)
def test_file_that_kube_scheduler_takes_has_no_fault(path):
    for document in yaml.safe_load_all(path.read_text()):
        if (document or {}).get("kind") == "KubeSchedulerConfiguration":
            assert list(shape_refusals(document)) == []
            assert list(value_refusals(document, None)) == []


@pytest.mark.parametrize(
    ("document", "field", "why", "fix"),
    [
        (with_extender(urlPrefx="x"), "extenders[0].urlPrefx", "knows no such field", "urlPrefix:"),
        (with_extender(zzz=1), "extenders[0].zzz", "knows no such field", "one of bindVerb, enableHTTPS,"),
        (with_extender(urlPrefix=["a"]), "extenders[0].urlPrefix", "wanted text, found ['a']", "text"),
        (with_extender(ignorable=1), "extenders[0].ignorable", "wanted a boolean, found 1", "a boolean"),
        (with_extender(weight=True), "extenders[0].weight", "wanted a whole number, found True", "a whole"),
        (with_extender(tlsConfig={"caFil": "x"}), "extenders[0].tlsConfig.caFil", "no such field", "caFile:"),
        (
            with_extender(managedResources=[{}, {"name": 1}]),
            "extenders[0].managedResources[1].name",
            "wanted text, found 1",
            "text",
        ),
        (with_extender(managedResources=["a"]), "extenders[0].managedResources", "wanted a list of maps", ""),
        ({"profiles": [{}, {"plugin": {}}]}, "profiles[1].plugin", "knows no such field", "plugins:"),
        ({"profile": []}, "profile", "knows no such field", "profiles:"),
        ({"algorithmSource": {}}, "algorithmSource", "knows no such field", "one of"),
        ({"parallelism": "16"}, "parallelism", "wanted a whole number, found 16", "a whole number"),
    ],
)
def test_field_that_is_unknown_or_of_a_wrong_type_is_found(document, field, why, fix):
    [found] = shape_refusals(document)
    assert (found.field, why in found.why, found.fix.startswith(fix)) == (field, True, True), found


@pytest.mark.parametrize("document", [{"zzzOfANewerRelease": 1}, with_extender(weight=None, tlsConfig=None)])
def test_field_of_a_newer_release_and_one_without_a_value_are_taken(document):
    assert list(shape_refusals(RECOMMENDED | document)) == []


@pytest.mark.parametrize(
    ("document", "field", "why"),
    [
        (with_extender(prioritizeVerb="p"), "extenders[0].weight", "missing, though"),
        (with_extender(prioritizeVerb="p", weight=0), "extenders[0].weight", "missing, though"),
        (with_extender(httpTimeout="10"), "extenders[0].httpTimeout", "10 is no duration"),
        *(
            (
                with_extender(managedResources=[{"name": name}]),
                "extenders[0].managedResources[0].name",
                "is no extended resource",
            )
            for name in ("", "cpu", "requests.example.org/x", "kubernetes.io/x", "x.kubernetes.io/x", "a_b/x")
        ),
        (
            {"profiles": [{}, {"schedulerName": "default-scheduler"}]},
            "profiles[].schedulerName",
            "two profiles",
        ),
        (
            {"profiles": [{}, {"schedulerName": "a", "pluginConfig": [{"name": "x"}, {"name": "x"}]}]},
            "profiles[1].pluginConfig",
            "x has two entries",
        ),
    ],
)
def test_value_that_kube_scheduler_refuses_is_found(document, field, why):
    [found] = value_refusals(document, None)
    assert (found.field, why in found.why) == (field, True), found


@pytest.mark.parametrize("timeout", ["0", "10s", "1m30s", "1.5h", "-1s", None, 5])
def test_durations_of_go_are_taken_and_other_types_left_to_the_shape(timeout):
    assert list(value_refusals(with_extender(httpTimeout=timeout), None)) == []


def test_weight_of_our_entry_has_its_own_check():
    ours = {"prioritizeVerb": "prioritize"}
    assert list(value_refusals({"extenders": [ours]}, ours)) == []
    assert [each.field for each in value_refusals({"extenders": [ours, dict(ours)]}, ours)] == [
        "extenders[1].weight"
    ]


def test_entries_that_bind_and_resources_managed_twice_are_those_of_all_entries():
    also = {"managedResources": [*OURS["managedResources"], {"name": "x.example.org/y"}]}
    document = {"extenders": [OURS, GPU_SHARE, also, "no map"]}
    assert binders(document) == [OURS, GPU_SHARE]
    assert managed_twice(document) == [each["name"] for each in OURS["managedResources"]]
    assert (binders({"extenders": None}), managed_twice({})) == ([], [])
