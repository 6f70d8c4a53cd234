"""Helm's own programs: `K8S_RDMA_HELM` names one, else those of each major version that are on PATH."""

from __future__ import annotations

import os
import shutil

import pytest

NAMED = os.environ.get("K8S_RDMA_HELM")
HELMS = [NAMED] if NAMED else [path for name in ("helm", "helm3", "helm4") if (path := shutil.which(name))]
needs_helm = pytest.mark.skipif(not HELMS, reason="there is no helm: make setup-tests, or K8S_RDMA_HELM=FILE")
every_helm = pytest.mark.parametrize("helm", HELMS or [""], ids=os.path.basename)
