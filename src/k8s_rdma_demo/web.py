"""The demo's `k8s-rdma web`, on a listening socket from outside the demo's network namespace."""

from __future__ import annotations

import argparse
import socket

from k8s_rdma.config.web import ExtenderEndpoint, NodesEndpoint, WebConfig
from k8s_rdma.web.main import run_on


def main() -> None:
    """Serve on the socket, which belongs to the namespace that it was made in."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--listener", type=int, required=True, help="its file descriptor")
    parser.add_argument("--extender", required=True, help="its URL")
    parser.add_argument("--node-port", type=int, required=True, help="of the nodes' servers")
    parser.add_argument("--kubeconfig", required=True, help="of the API server")
    options = parser.parse_args()
    config = WebConfig(
        extender=ExtenderEndpoint(url=options.extender),
        poll_s=1,
        nodes=NodesEndpoint(port=options.node_port),
        claims=True,
        kubeconfig=options.kubeconfig,
    )
    with socket.socket(fileno=options.listener) as listener:
        run_on(listener, config)


if __name__ == "__main__":
    main()
