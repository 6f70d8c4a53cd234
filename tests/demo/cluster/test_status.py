"""Refusals of the API server, as documents that clients read."""

from __future__ import annotations

import pytest
from lightkube import ApiError
from lightkube.resources.core_v1 import Pod

from k8s_rdma_demo.cluster.objects import DEPLOYMENTS, PODS, Target
from k8s_rdma_demo.cluster.status import forbidden, invalid, success, too_large_for_etcd

pytestmark = pytest.mark.anyio


async def test_missing_pod_is_a_404_status_that_lightkube_understands(cluster):
    async with cluster() as c:
        with pytest.raises(ApiError) as missing:
            await c.client.get(Pod, "nowhere")
        status = missing.value.status
        assert (status.code, status.reason) == (404, "NotFound")
        assert status.message == 'pods "nowhere" not found'
        assert (status.details.kind, status.details.name) == ("pods", "nowhere")


def test_document_has_reason_details_and_code_only_if_there_are_any():
    refused = invalid(PODS, "p1", "spec.priority", "FieldValueInvalid", "Invalid value: -1")
    assert refused.document() == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": 'Pod "p1" is invalid: spec.priority: Invalid value: -1',
        "reason": "Invalid",
        "details": {
            "name": "p1",
            "kind": "Pod",
            "causes": [
                {"reason": "FieldValueInvalid", "message": "Invalid value: -1", "field": "spec.priority"}
            ],
        },
        "code": 422,
    }
    assert not {"reason", "details"} & too_large_for_etcd().document().keys()
    assert "code" not in success()


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (
            Target(resource=PODS, namespace="n", name="p", subresource="log"),
            (
                'pods "p" is forbidden: User "u" cannot get resource "pods/log" in API group "" '
                'in the namespace "n"'
            ),
        ),
        (
            Target(resource=DEPLOYMENTS),
            (
                'deployments.apps is forbidden: User "u" cannot get resource "deployments" in API group '
                '"apps" at the cluster scope'
            ),
        ),
    ],
)
def test_refusal_for_rights_names_verb_resource_and_scope(target: Target, message: str):
    assert forbidden("u", "get", target).message == message
