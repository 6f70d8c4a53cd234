"""The floor of an extender's start: reads the lists of pods and RdmaNodes, without using the values.

    python lists_program.py KUBECONFIG

prints the processor time, s. Event loop and garbage collection are the extender's; imports do not count.
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import aclosing
from typing import Any, cast

import uvloop

from k8s_rdma.extender.main import collect_seldom
from k8s_rdma.kube.client import connect
from k8s_rdma.kube.informer import Listed


async def read(kubeconfig: str) -> None:
    """List both, one after the other."""
    client = connect(kubeconfig)
    for stream in (client.follow_rdma_nodes(), client.follow_pods()):
        async with aclosing(cast("Any", stream)) as events:
            async for event in events:
                if isinstance(event, Listed):
                    break
    await client.close()


if __name__ == "__main__":
    collect_seldom()
    began = time.process_time()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(read(sys.argv[1]))
    print(time.process_time() - began, flush=True)
