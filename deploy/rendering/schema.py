"""The schema of the chart's values, by which Helm refuses wrong ones: of the processes' configuration models.

Draft 7, and patterns of Go's regular expressions, as Helm's validators take both. What the chart itself
decides (`DECIDED`) is no key of its `config` values.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from deploy.rendering.chart import CHART, default_values
from k8s_rdma.config.agent import AgentConfig
from k8s_rdma.config.devices import DevicePluginConfig
from k8s_rdma.config.extender import ExtenderConfig
from k8s_rdma.config.hardware import HardwareConfig
from k8s_rdma.config.init import InitConfig
from k8s_rdma.config.namespace_policies import NamespacePolicyConfig
from k8s_rdma.config.server import ServerConfig
from k8s_rdma.wire.plugin_config import MIN_BLOCK

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Schema = dict[str, Any]

_CREDENTIALS = ("kubeconfig", "inCluster")
_EVERYWHERE = ("node", "hardware", "runDir")
DECIDED: dict[str, tuple[str, ...]] = {
    "AgentConfig": (
        *(*_EVERYWHERE, *_CREDENTIALS),
        *("stateDir", "hostRoot", "placementKeyFile", "policyFile", "devicePlugin", "stateGroup"),
    ),
    "PublishConfig": ("leaseNamespace",),
    "InitConfig": ("hardware", "stateDir", "sysRoot", "keepUsedVfs"),
    "ServerConfig": (*_EVERYWHERE, "listen", "tls", "tokenFile"),
    "DevicePluginConfig": (
        *("node", "runDir", *_CREDENTIALS, "claims"),
        *("listen", "tls", "tokenFile", "kubeletDir", "podResources"),
    ),
    "ExtenderConfig": (
        "kubeconfig",
        "api",
        "listen",
        "tls",
        "tokenFile",
        "views",
        "placementKeyFile",
        "policyFile",
        "leaseName",
        "leaseNamespace",
        "nodeLeaseNamespace",
        "filterPath",
        "prioritizePath",
        "preemptPath",
        "bindPath",
    ),
}
"""By model, the keys that mounts, accounts and probes of the manifests depend on."""

_CONFIGURED: dict[tuple[str, ...], type[msgspec.Struct]] = {
    ("hardware",): HardwareConfig,
    ("node", "init", "config"): InitConfig,
    ("node", "agent", "config"): AgentConfig,
    ("node", "server", "config"): ServerConfig,
    ("node", "devicePlugin", "config"): DevicePluginConfig,
    ("extender", "config"): ExtenderConfig,
}

_TEXT = {"type": "string"}
_NAME = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"}
_NAME_OR_NONE = {"type": "string", "pattern": "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$"}
_RESOURCE_OR_NONE = {
    "type": "string",
    "pattern": "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$",
}
_PATH = {"type": "string", "pattern": "^/"}
_PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
_OBJECT = {"type": "object"}
_TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
_CAPABILITIES = {"type": "array", "items": {"type": "string", "pattern": "^[A-Z_]+$"}}
_NAMES = {"type": "array", "items": {"type": "string", "minLength": 1}}
_OBJECTS = {"type": "array", "items": {"type": "object"}}
_SHARE = {"type": ["integer", "string"], "pattern": "^[0-9]+%$", "minimum": 1}

_SUBNET = "[0-9a-fA-F.:]+/[0-9]{1,3}"
_SUBNETS = {"type": "string", "pattern": f"^{_SUBNET}(,{_SUBNET})?$"}
_SUBNETS_OR_NONE = {"type": "string", "pattern": f"^({_SUBNET}(,{_SUBNET})?)?$"}

SAID: dict[tuple[str, ...], Schema] = {
    ("image", "pullPolicy"): {"enum": ["Always", "IfNotPresent", "Never"]},
    ("image", "digest"): {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"},
    ("imagePullSecrets",): _OBJECTS,
    ("placementKey", "secretName"): _NAME,
    ("namespacePolicies",): {"type": "array", "items": {"$ref": "#/definitions/NamespacePolicyConfig"}},
    ("placementKey", "signingSecretName"): _NAME,
    ("injection", "by"): {"enum": ["auto", "policy", "webhook"]},
    ("injection", "webhook", "replicas"): {"type": "integer", "minimum": 1, "maximum": 9},
    ("injection", "webhook", "tlsSecretName"): _NAME_OR_NONE,
    ("injection", "webhook", "caBundle"): {"type": "string", "pattern": "^[A-Za-z0-9+/]*=*$"},
    ("injection", "webhook", "annotations"): _TEXTS,
    ("injection", "webhook", "nodeSelector"): _TEXTS,
    ("injection", "webhook", "tolerations"): _OBJECTS,
    ("ipam", "range"): _SUBNETS_OR_NONE,
    ("ipam", "ranges"): {"type": "object", "additionalProperties": _SUBNETS},
    ("ipam", "by"): {"enum": ["auto", "host-local", "whereabouts"]},
    ("ipam", "perNode"): {"anyOf": [{"enum": [True]}, {"type": "integer", "minimum": MIN_BLOCK}]},
    ("dra", "deviceClass"): _NAME,
    ("dra", "extendedResourceName"): _RESOURCE_OR_NONE,
    ("dra", "maxSurge"): _SHARE,
    ("node", "nodeSelector"): _TEXTS,
    ("node", "tolerations"): _OBJECTS,
    ("node", "affinity"): _OBJECT,
    ("node", "maxUnavailable"): _SHARE,
    ("node", "terminationGracePeriodSeconds"): {"type": "integer", "minimum": 30},
    ("node", "podLabels"): _TEXTS,
    ("node", "podAnnotations"): _TEXTS,
    ("node", "kubeletDir"): _PATH,
    ("node", "agent", "capabilities"): _CAPABILITIES,
    ("node", "server", "tls", "secretName"): _NAME_OR_NONE,
    ("node", "server", "tls", "clientNames"): _NAMES,
    ("node", "server", "tokensSecretName"): _NAME_OR_NONE,
    ("node", "cni", "binDir"): _PATH,
    ("node", "cni", "confDir"): _PATH,
    ("node", "cni", "capabilities"): _CAPABILITIES,
    ("node", "cni", "network"): {"enum": ["chained", "alone", "none"]},
    ("node", "cni", "plugin"): _OBJECT,
    ("web", "nodeTls", "secretName"): _NAME_OR_NONE,
    ("extender", "mode"): {"enum": ["second-scheduler", "host-network", "service"]},
    ("extender", "replicas"): {"type": "integer", "minimum": 0, "maximum": 9},
    ("extender", "tlsSecretName"): _NAME_OR_NONE,
    ("extender", "clientNames"): _NAMES,
    ("extender", "scheduler", "name"): _NAME,
    ("extender", "scheduler", "weight"): {"type": "integer", "minimum": 1},
    ("extender", "scheduler", "image", "pullPolicy"): {"enum": ["Always", "IfNotPresent", "Never"]},
    ("extender", "nodeSelector"): _TEXTS,
    ("extender", "tolerations"): _OBJECTS,
    ("extender", "affinity"): _OBJECT,
    ("extender", "podLabels"): _TEXTS,
    ("extender", "podAnnotations"): _TEXTS,
    ("viewers", "port"): _PORT,
    ("web", "access"): {"enum": ["loopback", "reviews"]},
    ("web", "tlsSecretName"): _NAME_OR_NONE,
    ("web", "nodeSelector"): _TEXTS,
    ("web", "tolerations"): _OBJECTS,
    ("monitoring", "serviceMonitor", "labels"): _TEXTS,
    ("monitoring", "serviceMonitor", "endpoint"): _OBJECT,
    ("monitoring", "serviceMonitor", "interval"): {"type": "string", "pattern": "^([0-9]+(ms|s|m|h))+$"},
}
"""Of values for which their default does not say what may be there."""


def schema_text() -> str:
    """values.schema.json."""
    return json.dumps(values_schema(), indent=2, ensure_ascii=False) + "\n"


def values_schema() -> Schema:
    """The schema: what values.yaml has, and nothing else."""
    schema = _of_default(default_values(), ())
    schema["properties"]["global"] = _OBJECT  # Helm puts one into every chart's values
    schema["properties"]["enabled"] = {
        "type": "boolean"
    }  # the usual condition of a parent chart's dependency
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        **schema,
        "definitions": _definitions(),
    }


def _of_default(value: Any, path: tuple[str, ...]) -> Schema:
    if path in _CONFIGURED:
        return {"$ref": f"#/definitions/{_CONFIGURED[path].__name__}"}
    if path in SAID:
        return SAID[path]
    if path[-1:] == ("resources",):
        return _OBJECT
    if isinstance(value, dict):
        properties = {key: _of_default(each, (*path, key)) for key, each in value.items()}
        return {"type": "object", "additionalProperties": False, "properties": properties}
    return {"type": "boolean"} if isinstance(value, bool) else _TEXT


_ABSENT_IN_OLDER = frozenset({("namespacePolicies",), ("placementKey", "signingSecretName")})
"""Values by whose absence the chart knows that Helm has those of an older chart (`--reuse-values`)."""


def defaults_text() -> str:
    """Return defaults.json: the defaults of keys that a user's file leaves without a value."""
    values, schema = default_values(), values_schema()
    entries = [
        {"section": path[:-1], "key": path[-1], "value": value}
        for path, value in _defaults(values, schema["properties"], ())
        if path not in _ABSENT_IN_OLDER
    ]
    return json.dumps({"defaults": entries}, indent=1, ensure_ascii=False) + "\n"


def _defaults(
    values: Mapping[str, Any], properties: Mapping[str, Schema], section: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Find sections, before their keys, and single values; lists and the user's own maps if they are empty.

    To take the default of a list or of such a map away, users write null (Helm's rule).
    """
    for key, value in values.items():
        schema, path = properties[key], (*section, key)
        is_section = "properties" in schema
        if is_section or not value or not isinstance(value, dict | list):
            yield path, value
        if is_section:
            yield from _defaults(value, schema["properties"], path)


def _definitions() -> Schema:
    _, found = msgspec.json.schema_components(
        (*_CONFIGURED.values(), NamespacePolicyConfig), ref_template="#/definitions/{name}"
    )
    made = {name: _plain(each) for name, each in sorted(found.items())}
    for name, decided in DECIDED.items():
        for key in decided:
            del made[name]["properties"][key]
        required = [key for key in made[name].pop("required", ()) if key not in decided]
        made[name] |= {"required": required} if required else {}
    for name in ("DevicePluginConfig", "ServerConfig", "ExtenderConfig"):
        made[name]["properties"]["port"] = _PORT  # containers and probes name it
    return made


def _plain(schema: Any) -> Any:
    """Without what draft 7 or Go's regular expressions do not know, and without defaults and prose."""
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: _plain(value) for key, value in schema.items() if _means_something(schema, key)}


def _means_something(schema: Mapping[str, Any], key: str) -> bool:
    if key == "pattern" and isinstance(schema[key], str):
        return "(?" not in schema[key]
    is_keyword = "type" in schema or "anyOf" in schema or "$ref" in schema or "enum" in schema
    return not (is_keyword and key in {"default", "description", "discriminator", "title"})


def write_schema() -> None:
    """Write the schema, and the defaults for keys without a value, into the chart."""
    (CHART / "values.schema.json").write_text(schema_text())
    (CHART / "files" / "defaults.json").write_text(defaults_text())
