"""Policies for tests of requests that a pod may make if its operator allows it."""

from __future__ import annotations

from pathlib import Path

from k8s_rdma.config.namespace_policies import load_policies

EXAMPLES = Path(__file__).resolve().parent.parent / "examples" / "policies"
EVERYTHING_FILE = str(EXAMPLES / "everything.yaml")
EVERYTHING = load_policies(EVERYTHING_FILE)
