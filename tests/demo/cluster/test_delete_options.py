"""Options of a deletion, and the object that it is for."""

from __future__ import annotations

import pytest

from demo.cluster.api_paths import PODS_URL
from k8s_rdma_demo.cluster.delete_options import DeleteOptions, Preconditions, parse_delete_options
from k8s_rdma_demo.cluster.objects import PODS
from k8s_rdma_demo.cluster.status import StatusError

pytestmark = pytest.mark.anyio


async def test_delete_is_refused_with_409_when_the_uid_is_another(cluster, make_pod):
    async with cluster() as c:
        await c.http.post(PODS_URL, json=make_pod())
        options = {"preconditions": {"uid": "other"}}
        answer = await c.http.request("DELETE", f"{PODS_URL}/p1", json=options)
        assert answer.status_code == 409
        answer = await c.http.request("DELETE", f"{PODS_URL}/p1", json={"gracePeriodSeconds": "1"})
        assert answer.status_code == 400
        assert len(c.api.store.items(PODS)) == 1


def test_options_are_read_as_kubernetes_writes_them():
    found = parse_delete_options(
        {
            "gracePeriodSeconds": 0,
            "preconditions": {"uid": "u", "resourceVersion": None},
            "dryRun": ["All"],
            "propagationPolicy": "Orphan",
        }
    )
    assert found == DeleteOptions(
        grace_period_s=0, preconditions=Preconditions(uid="u"), dry_run=True, orphans=True
    )
    assert parse_delete_options({"propagationPolicy": "Foreground"}) == DeleteOptions()


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ({"gracePeriodSeconds": "0"}, "gracePeriodSeconds"),
        ({"propagationPolicy": "Later"}, "propagationPolicy"),
        ({"dryRun": ["Some"]}, 'dryRun: Unsupported value: "Some"'),
    ],
)
def test_malformed_options_are_a_bad_request(document, why):
    with pytest.raises(StatusError, match=why) as refused:
        parse_delete_options(document)
    assert refused.value.code == 400


@pytest.mark.parametrize(("uid", "version", "named"), [("v", "", "UID"), ("", "4", "ResourceVersion")])
def test_precondition_on_another_object_is_a_conflict(uid, version, named):
    pod = {"metadata": {"name": "p1", "namespace": "n", "uid": "u", "resourceVersion": "3"}}
    Preconditions(uid="u", resource_version="3").check(PODS, pod)
    with pytest.raises(
        StatusError, match=f"/registry/pods/n/p1, .*Precondition failed: {named} in precond"
    ) as found:
        Preconditions(uid=uid, resource_version=version).check(PODS, pod)
    assert found.value.code == 409
