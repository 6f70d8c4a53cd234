"""The client of kubelet's PodResources API that loads gRPC by its first question."""

from __future__ import annotations

import asyncio
import sys

import pytest

pytestmark = pytest.mark.anyio


async def test_grpc_is_loaded_by_the_first_question_alone():
    program = "import sys, k8s_rdma.kube.pod_resources; sys.exit(bool({'grpc', 'google'} & set(sys.modules)))"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
    assert await process.wait() == 0
