"""Bare uvicorn with one answer to everything. `static_server.py FILE` prints its port and serves the file."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import uvicorn
import uvloop

BODY = Path(sys.argv[1]).read_bytes()
HEADERS = [(b"content-type", b"application/json"), (b"content-length", str(len(BODY)).encode())]


async def app(_scope: Any, _receive: Any, send: Any) -> None:
    """The answer."""
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await send({"type": "http.response.body", "body": BODY})


with socket.create_server(("127.0.0.1", 0)) as listener:
    print(listener.getsockname()[1], flush=True)
    config = uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
    )
    uvloop.run(uvicorn.Server(config).serve(sockets=[listener]))
