"""`deploy/manifests`, for `kubectl apply -k`: what the chart comes to by its defaults."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from deploy.rendering.chart import CHART, render

if TYPE_CHECKING:
    from collections.abc import Mapping

MANIFESTS = CHART.parent / "manifests"

MODES = ("second-scheduler", "host-network")
"""The mode `service` needs certificates, which no default can bring."""

GIVEN = {"namespace": {"create": True}, "placementKey": {"create": False}}
"""Values of the manifests: they create the namespace; you make the key, as kubectl cannot check for one."""

EVERY_RELEASE = {"injection": {"enabled": False}}
"""kubectl does not ask for the cluster's release, either, and kinds that an older one lacks are refused; it
makes no certificate for a webhook."""

OF_THE_MODE = "templates/extender/"

NOTICE = "# Made of deploy/chart by `make chart`; edit it there.\n"


def manifests(values: Mapping[str, Any] | None = None, *, chart: Path = CHART) -> dict[str, str]:
    """Return all files by their path below `deploy/manifests`. values: of the chart, beside those above."""
    rendered = {
        mode: render(
            {**GIVEN, **EVERY_RELEASE, "extender": {"mode": mode}, **(values or {})},
            service="kubectl",
            chart=chart,
        )
        for mode in MODES
    }
    files = {f"base/{path.name}": NOTICE + path.read_text() for path in sorted((chart / "crds").iterdir())}
    for path, text in rendered[MODES[0]].items():
        if not path.startswith(OF_THE_MODE):
            files[f"base/{_file(path)}"] = _text(text)
    for mode in MODES:
        for path, text in rendered[mode].items():
            if path.startswith(OF_THE_MODE):
                files[f"{mode}/{_file(path)}"] = _text(text)
    for folder in ("base", *MODES):
        names = sorted(name.partition("/")[2] for name in files if name.startswith(f"{folder}/"))
        files[f"{folder}/kustomization.yaml"] = _kustomization([] if folder == "base" else ["../base"], names)
    return files


def write_manifests() -> None:
    """Make the folder anew."""
    made = manifests()
    if MANIFESTS.exists():
        shutil.rmtree(MANIFESTS)
    for name, text in made.items():
        path = MANIFESTS / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _file(template: str) -> str:
    """`templates/node/daemonset.yaml` as `node-daemonset.yaml`."""
    return "-".join(Path(template).parts[1:])


def _text(rendered: str) -> str:
    lines = (line.rstrip() for line in rendered.strip().removeprefix("---\n").splitlines())
    return NOTICE + "\n".join(line for line in lines) + "\n"


def _kustomization(bases: list[str], names: list[str]) -> str:
    document = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [*bases, *names],
    }
    return NOTICE + yaml.safe_dump(document, sort_keys=False)
