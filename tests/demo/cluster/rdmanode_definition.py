"""The definition of RdmaNodes, and the path of definitions."""

from __future__ import annotations

from pathlib import Path

import yaml

CRDS_URL = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
CRD = yaml.safe_load((Path(__file__).parents[3] / "deploy" / "crds" / "rdmanodes.yaml").read_text())
