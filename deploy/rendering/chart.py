"""The chart, rendered without a cluster, as `helm template` does."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from deploy.rendering.engine import render_templates
from k8s_rdma import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CHART = Path(__file__).parents[1] / "chart"
KUBERNETES = "v1.36.2"
"""The release for which the manifests are rendered."""


def parse(text: str) -> list[Any]:
    """Return a text's YAML documents, read by libyaml: a tenth of the time of PyYAML's own parser."""
    return list(yaml.load_all(text, yaml.CSafeLoader))


def default_values(chart: Path = CHART) -> dict[str, Any]:
    """The chart's values.yaml."""
    values: dict[str, Any]
    [values] = parse((chart / "values.yaml").read_text())
    return values


def with_version(about: str) -> str:
    """Return the text of Chart.yaml with the program's version, which it has twice."""
    return re.sub(r"(?m)^(version|appVersion): .*$", rf"\1: {__version__}", about)


def write_version() -> None:
    """Write the program's version into the chart."""
    path = CHART / "Chart.yaml"
    path.write_text(with_version(path.read_text()))


def render(  # noqa: PLR0913  what Helm has besides a chart
    given: Mapping[str, Any],
    *,
    namespace: str = "k8s-rdma",
    kubernetes: str = KUBERNETES,
    service: str = "Helm",
    chart: Path = CHART,
    cluster: Sequence[Mapping[str, Any]] = (),
    apis: Sequence[str] = (),
) -> dict[str, str]:
    """Texts by the templates' paths, in YAML; those that come to nothing are left out. TemplateError.

    given: values above the defaults. service: who applies it (`app.kubernetes.io/managed-by`). chart: another
    version's directory. cluster: objects that are there already. apis: groups and versions that it
    serves besides Kubernetes' own.
    """
    [about] = parse((chart / "Chart.yaml").read_text())
    context = {
        "Values": with_values(default_values(chart), given),
        "Chart": {"Name": about["name"], "Version": about["version"], "AppVersion": about["appVersion"]},
        "Release": {"Name": "k8s-rdma", "Namespace": namespace, "Service": service},
        "Capabilities": {"KubeVersion": {"Version": kubernetes}},
    }
    templates = _texts(chart, "templates", "*.tpl", "*.yaml", "*.txt")
    files = _texts(chart, "files", "*.yaml", "*.json")
    rendered = render_templates(
        {
            "context": context,
            "templates": templates,
            "files": files,
            "cluster": list(cluster),
            "apis": list(apis),
        }
    )
    return {path: text for path, text in rendered.items() if any(parse(_of_yaml(path, text)))}


def documents(rendered: Mapping[str, str]) -> list[dict[str, Any]]:
    """All objects of what was rendered."""
    return [each for text in rendered.values() for each in parse(text) if each]


def with_values(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Maps in depth, anything else replaced, None taken away: Helm's rule."""
    merged = copy.deepcopy(dict(defaults))
    for key, value in given.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = with_values(merged[key], value)
        else:
            merged[key] = value
    return merged


def _texts(chart: Path, folder: str, *patterns: str) -> dict[str, str]:
    """By path below the chart; through its links, as Helm follows them."""
    root = chart / folder
    depths = ("*/*/", "*/", "")
    found = [path for depth in depths for pattern in patterns for path in root.glob(f"{depth}{pattern}")]
    return {str(path.relative_to(chart)): path.read_text() for path in found}


def _of_yaml(path: str, text: str) -> str:
    return text if path.endswith(".yaml") else ""
