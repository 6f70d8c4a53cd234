"""Helm's own program, where there is one: `K8S_RDMA_HELM` names it, else it is on PATH."""

from __future__ import annotations

import os
import shutil

import pytest

HELM = os.environ.get("K8S_RDMA_HELM") or shutil.which("helm")
needs_helm = pytest.mark.skipif(HELM is None, reason="there is no helm: K8S_RDMA_HELM names none")
