"""The HTTP server of all processes that have one: a listening socket, limits on clients, and access.

The application is the process's own, and so is the handling of signals.
"""

from k8s_rdma.http_server.asgi import Answer
from k8s_rdma.http_server.connections import ConnectionLimits
from k8s_rdma.http_server.server import HttpServer, listen

__all__ = ["Answer", "ConnectionLimits", "HttpServer", "listen"]
