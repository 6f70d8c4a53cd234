"""Bodies of requests where the kernel gives no more memory."""

from __future__ import annotations

import subprocess
import sys

READ = """
import asyncio, resource
from k8s_rdma.http_server.bodies import Bodies

BODY, PART = 64 << 20, 1 << 20
bodies = Bodies(BODY, bound="maxBodyBytes")


async def read(count):
    parts = [bytes(PART)] * count

    async def receive():
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    scope = {"headers": [(b"content-length", b"%d" % BODY)], "client": ("192.0.2.1", 1)}
    async with bodies.reading(scope, receive) as body:
        return len(body)


async def main():
    pages = int(open("/proc/self/statm").read().split()[0])
    limit = pages * resource.getpagesize() + BODY // 2
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    print(await read(4))
    try:
        await read(63)
    except MemoryError:
        print("no memory", dict(bodies._bytes))


asyncio.run(main())
"""


def test_body_grows_as_it_arrives_without_memory_for_all_of_it_and_is_counted_once() -> None:
    done = subprocess.run([sys.executable, "-c", READ], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n") == [str(4 << 20), "no memory {}", ""]
