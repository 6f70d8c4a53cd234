"""Runs in a guest: apply_pods.py API, pods on stdin; prints the node of each, or why it was refused."""

from __future__ import annotations

import json
import sys

from k8s_rdma_demo.kubectl import Kubectl

TIMEOUT_S = 240.0


def main() -> None:
    """Create pods one after the other, so that each finds the room that those before it left."""
    kubectl = Kubectl.for_server(sys.argv[1])
    found = {}
    for pod in json.load(sys.stdin):
        name = kubectl.apply(pod["manifest"])
        if pod["fits"]:
            found[name] = {"node": kubectl.running(name, timeout_s=TIMEOUT_S)["spec"]["nodeName"]}
        else:
            found[name] = {"refused": kubectl.refused(name, timeout_s=TIMEOUT_S)}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
