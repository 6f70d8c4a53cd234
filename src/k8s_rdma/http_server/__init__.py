"""What the processes that speak HTTP have in common: a listening socket, uvicorn on it, and limits.

The application is the process's own; signals are the process's business too.
"""

from k8s_rdma.http_server.answer import Answer
from k8s_rdma.http_server.connections import Limits
from k8s_rdma.http_server.server import HttpServer, listen

__all__ = ["Answer", "HttpServer", "Limits", "listen"]
