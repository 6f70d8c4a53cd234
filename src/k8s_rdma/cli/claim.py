"""`k8s-rdma claim`: ResourceClaimTemplates for what an annotation asks for, and pods that use them."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import yaml

from k8s_rdma.config.devices import SLOT_RESOURCE
from k8s_rdma.config.manifests import annotations_of, documents, pod_of, read_text, template_path
from k8s_rdma.errors import MalformedError, visible
from k8s_rdma.wire.annotation import ANNOTATION, NCCL_ANNOTATION, POLICY_ANNOTATION, read_pod
from k8s_rdma.wire.claim_template import ClaimTemplates, TemplateNames, claim_templates, with_claims

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

_DEFAULT_NAME = "rdma"
_EXTENDERS_SCHEDULER = "rdma-scheduler"
"""The chart's name of the scheduler that asks the extender. Claims need none, and one scheduler for all of
them: two give a PF's bandwidth away twice."""
_PLAIN = re.compile(
    r"(?!(?i:y|n|yes|no|on|off|true|false|null)$)[A-Za-z][-A-Za-z0-9./_]*(?::[-A-Za-z0-9./_]+)*"
    "|[1-9][0-9]*[MGT]"
)
"""Texts that every YAML reader takes for texts. `1e3` is a number for the API server's."""


class _Dumper(yaml.SafeDumper):
    """Indents lists as Kubernetes' documentation does, and quotes what a reader may take for no text."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002  PyYAML's name
        """Write equal values again."""
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None if _PLAIN.fullmatch(text) else "|" if "\n" in text else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def print_templates(
    annotation: str | None, manifest: Path | None, policy: str | None, names: TemplateNames
) -> None:
    """Print the templates of an annotation, which is a text, or in a file or manifest; by default on stdin.

    MalformedError names what a claim cannot say.
    """
    text = annotation if annotation is not None else read_text(manifest)
    if annotation is not None or text.lstrip().startswith("["):
        annotations = {ANNOTATION: text} | ({POLICY_ANNOTATION: policy} if policy else {})
        found = _converted(annotations, replace(names, name=names.name or _DEFAULT_NAME))
        templates = [template.document for template in found.templates]
    else:
        templates = []
        for document in documents(text):
            pod = pod_of(document)
            if pod is not None:
                found = _converted(_annotations(pod, policy), _named(document, names))
                templates += [template.document for template in found.templates]
    _require(templates)
    _print(templates)


def print_manifests(manifest: Path | None, policy: str | None, names: TemplateNames) -> None:
    """Print templates and manifests, whose pods use them; objects that ask for no interfaces as they are."""
    templates: list[dict[str, Any]] = []
    manifests = []
    for document in documents(read_text(manifest)):
        changed = document
        pod = pod_of(document)
        if pod is not None:
            found = _converted(_annotations(pod, policy), _named(document, names))
            templates += [template.document for template in found.templates]
            changed = _with_claims(document, pod, found)
        manifests.append(changed)
    _require(templates)
    _print([*templates, *manifests])


def _with_claims(document: dict[str, Any], pod: dict[str, Any], found: ClaimTemplates) -> dict[str, Any]:
    if not found.templates:
        return document
    changed = with_claims(pod, found.templates, SLOT_RESOURCE)
    scheduler = changed["spec"].get("schedulerName")
    if scheduler == _EXTENDERS_SCHEDULER:
        del changed["spec"]["schedulerName"]
    elif scheduler not in (None, "default-scheduler"):
        _warn(f"schedulerName {scheduler}: all pods with claims of the same PFs need the same scheduler")
    if NCCL_ANNOTATION in ((pod.get("metadata") or {}).get("annotations") or {}):
        _warn(f"{NCCL_ANNOTATION} is not read of pods with claims; set NCCL_NET=IB in the container's env")
    return _replaced(document, template_path(document), changed)


def _replaced(document: dict[str, Any], path: tuple[str, ...], pod: dict[str, Any]) -> dict[str, Any]:
    if not path:
        return pod
    return {**document, path[0]: _replaced(document[path[0]], path[1:], pod)}


def _converted(annotations: Mapping[str, str], names: TemplateNames) -> ClaimTemplates:
    found = claim_templates(read_pod(annotations, strict=True).request, names)
    for warning in found.warnings:
        _warn(warning)
    return found


def _annotations(pod: Mapping[str, Any], policy: str | None) -> dict[str, str]:
    return annotations_of(pod) | ({POLICY_ANNOTATION: policy} if policy else {})


def _named(document: Mapping[str, Any], names: TemplateNames) -> TemplateNames:
    """Name templates after their object where no name is chosen."""
    metadata = document.get("metadata") or {}
    name = metadata.get("name") or metadata.get("generateName", "").rstrip("-")
    default = f"{name}-{_DEFAULT_NAME}" if name else _DEFAULT_NAME
    namespace = names.namespace or metadata.get("namespace", "")
    return replace(names, name=names.name or default, namespace=namespace)


def _require(documents: list[dict[str, Any]]) -> None:
    if not documents:
        raise MalformedError(f"no interfaces: nothing has an annotation {ANNOTATION} that asks for any")


def _print(documents: Iterable[Mapping[str, Any]]) -> None:
    sys.stdout.write(yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100))


def _warn(sentence: str) -> None:
    sys.stderr.write(f"k8s-rdma: warning: {visible(sentence)}\n")
