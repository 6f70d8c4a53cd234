"""The chart: its generated files are up to date, which values it takes, and its processes' configuration."""

from __future__ import annotations

import json
import re
import string
from typing import TYPE_CHECKING, Any

import jsonschema_rs
import pytest
import typer
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from admission import read_policy
from chart_values import GIVEN, MUCH, SERVICE
from deploy.rendering import privileges, schema
from deploy.rendering.chart import CHART, default_values, documents, render, with_values
from deploy.rendering.engine import TemplateError, render_templates
from deploy.rendering.manifests import MANIFESTS, manifests
from k8s_rdma import __version__
from k8s_rdma.cli.main import app
from k8s_rdma.config.agent import AgentConfig
from k8s_rdma.config.devices import ClaimsConfig, DevicePluginConfig
from k8s_rdma.config.extender import ExtenderConfig
from k8s_rdma.config.faults import fit
from k8s_rdma.config.files import load_config
from k8s_rdma.config.init import InitConfig
from k8s_rdma.config.server import ServerConfig
from k8s_rdma.config.tls import NodeTls
from k8s_rdma.config.web import WebConfig
from k8s_rdma.wire.claim_template import DEVICE_CLASS
from k8s_rdma.wire.claims import DRIVER
from k8s_rdma.wire.conflist import plugin_section

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hypothesis.strategies import SearchStrategy

Json = dict[str, Any]


def by_name(objects: list[Json], kind: str, name: str) -> Json:
    (found,) = (each for each in objects if (each["kind"], each["metadata"]["name"]) == (kind, name))
    return found


def containers(objects: list[Json]) -> dict[str, Json]:
    pods = [
        each["spec"]["template"]["spec"] for each in objects if each["kind"] in {"DaemonSet", "Deployment"}
    ]
    return {
        each["name"]: each for pod in pods for each in [*pod.get("initContainers", ()), *pod["containers"]]
    }


# Generated files


def test_manifests_are_rendered_from_the_chart():
    found = {str(path.relative_to(MANIFESTS)): path.read_text() for path in MANIFESTS.rglob("*.yaml")}
    assert found == manifests(), "make chart"


def test_schema_is_generated_from_the_configuration_models():
    assert (CHART / "values.schema.json").read_text() == schema.schema_text(), "make chart"


def test_documentation_has_the_privileges_of_the_manifests():
    page = privileges.PAGE.read_text()
    assert privileges.table() in page, "make chart"


def test_chart_is_of_the_version_of_the_package():
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert about["appVersion"] == __version__


def test_kustomizations_list_each_file_once_and_no_object_comes_twice():
    for way in ("second-scheduler", "host-network"):
        objects = []
        for folder in ("base", way):
            listed = yaml.safe_load((MANIFESTS / folder / "kustomization.yaml").read_text())["resources"]
            names = [each for each in listed if each != "../base"]
            assert {*names, "kustomization.yaml"} == {path.name for path in (MANIFESTS / folder).iterdir()}
            objects += [
                each for name in names for each in yaml.safe_load_all((MANIFESTS / folder / name).read_text())
            ]
        keys = [
            (each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in objects
        ]
        assert len(keys) == len(set(keys))


# Values


def test_values_have_a_line_about_each():
    lines = (CHART / "values.yaml").read_text().splitlines()
    silent = [
        line
        for before, line in zip(["", *lines], lines, strict=False)
        if re.match(r" *[A-Za-z]+: *[^# ]", line)
        and " # " not in line
        and not before.lstrip().startswith("#")
    ]
    assert not silent


def refused(values: Json) -> str:
    validator = jsonschema_rs.Draft7Validator(schema.values_schema())
    return "; ".join(str(error) for error in validator.iter_errors(with_values(default_values(), values)))


@pytest.mark.parametrize("name", GIVEN)
def test_schema_takes_valid_values(name: str):
    assert not refused(GIVEN[name])


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"extendr": {}}, "extendr"),
        ({"node": {"agent": {"config": {"runDir": "/elsewhere"}}}}, "runDir"),
        (
            {"node": {"agent": {"config": {"reconcileS": 0}}}},
            "reconcileS|exclusiveMinimum|less than or equal",
        ),
        ({"node": {"agent": {"config": {"publish": {"leaseNamespace": "x"}}}}}, "leaseNamespace"),
        ({"hardware": {"pfs": [{"pcis": ["nonsense"]}]}}, "nonsense"),
        ({"hardware": {"pfs": [{"use": "claim"}]}}, "claim"),
        ({"dra": {"enabled": "yes"}}, "yes"),
        ({"node": {"devicePlugin": {"config": {"claims": {}}}}}, "claims"),
        ({"node": {"devicePlugin": {"config": {"resources": [{"mode": "exactly"}]}}}}, "exactly"),
        ({"extender": {"mode": "first-scheduler"}}, "first-scheduler"),
        ({"extender": {"config": {"strategy": "binpak"}}}, "binpak"),
        ({"extender": {"config": {"port": 0}}}, "minimum"),
        ({"image": {"digest": "sha256:0"}}, "digest|sha256"),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
def test_schema_refuses_invalid_values(values: Json, says: str):
    assert re.search(says, refused(values))


def test_schema_has_patterns_that_go_knows():
    patterns = re.findall(r'"pattern": "(.*)"', schema.schema_text())
    assert patterns
    assert not [each for each in patterns if "(?" in each or re.search(r"\\\\[1-9]", each)]


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"mode": "service"}, "extender.tlsSecretName: needed"),
        ({"replicas": 2}, "extender.replicas: more than one needs"),
    ],
)
def test_extender_that_could_not_work_is_refused(values: Json, says: str):
    with pytest.raises(TemplateError, match=says):
        render({"extender": values})


# Rendered objects


@pytest.mark.parametrize("name", GIVEN)
def test_processes_take_their_rendered_configuration(name: str, tmp_path: Path):
    kinds = {
        "init.yaml": InitConfig,
        "agent.yaml": AgentConfig,
        "server.yaml": ServerConfig,
        "device-plugin.yaml": DevicePluginConfig,
        "extender.yaml": ExtenderConfig,
    }
    objects = documents(render(GIVEN[name]))
    files = {
        key: text for each in objects if each["kind"] == "ConfigMap" for key, text in each["data"].items()
    }
    for key in kinds.keys() & files.keys():
        path = tmp_path / key
        path.write_text(files[key])
        load_config(kinds[key], str(path), {"node": "w1"} if key in {"agent.yaml", "server.yaml"} else {})


def test_directory_of_the_executable_comes_before_the_agents_own_directories_of_plugins():
    objects = documents(render({"node": {"cni": {"binDir": "/srv/cni"}}}))
    [text] = [each["data"]["agent.yaml"] for each in objects if "agent.yaml" in (each.get("data") or {})]
    assert yaml.safe_load(text)["cniPath"] == f"/srv/cni:{AgentConfig(node='w1').cni_path}"


@pytest.mark.parametrize("name", ["defaults", "uninstalling"])
def test_commands_know_their_options(name: str):
    program: Any = typer.main.get_command(app)
    for container, each in containers(documents(render(GIVEN[name]))).items():
        if "command" in each:
            continue
        command, *rest = each["args"]
        known = {option for param in program.commands[command].params for option in param.opts}
        given = {arg.partition("=")[0] for arg in rest if arg.startswith("--")}
        assert given <= known, container


def configuration_of_before(hardware: str) -> dict[str, Any]:
    """The ConfigMap of an installed release."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "k8s-rdma-node", "namespace": "k8s-rdma"},
        "data": {"agent.yaml": f"{hardware}hostRoot: /host\n"},
    }


@pytest.mark.parametrize(
    ("hardware", "before", "expected"),
    [
        ({}, None, {"all": False}),
        ({"requireRdma": False}, None, {"requireRdma": False, "all": False}),
        ({"all": True}, None, {"all": True}),
        ({"pfs": [{"names": ["a"]}]}, None, {"pfs": [{"names": ["a"]}]}),
        ({}, "", {"all": True}),
        ({"requireRdma": False}, "", {"requireRdma": False, "all": True}),
        ({"all": False}, "", {"all": False}),
        ({}, "hardware:\n  all: true\n", {"all": True}),
        ({}, "hardware:\n  all: false\n", {"all": False}),
        ({}, "hardware:\n  pfs:\n  - names: [a]\n", {"all": False}),
    ],
)
def test_cards_are_used_if_they_are_chosen_and_an_upgrade_keeps_the_choice(
    hardware: dict[str, Any], before: str | None, expected: dict[str, Any]
):
    cluster = [] if before is None else [configuration_of_before(before)]
    objects = documents(render({"hardware": hardware}, cluster=cluster))
    node = by_name(objects, "ConfigMap", "k8s-rdma-node")["data"]
    for name in ("init", "agent", "server"):
        assert yaml.safe_load(node[f"{name}.yaml"])["hardware"] == expected
    for name, model in (("init", InitConfig), ("agent", AgentConfig)):
        fit(model, yaml.safe_load(node[f"{name}.yaml"]) | ({"node": "w1"} if name == "agent" else {}))


def plugin_of(values: dict[str, Any], stored: str | None = None, apis: Sequence[str] = ()) -> Any:
    """Our CNI plugin's keys. stored: those of the release before."""
    before = configuration_of_before("")
    before["data"]["plugin.json"] = stored
    objects = documents(render(values, cluster=[] if stored is None else [before], apis=apis))
    return json.loads(by_name(objects, "ConfigMap", "k8s-rdma-node")["data"]["plugin.json"])


WHEREABOUTS = "whereabouts.cni.cncf.io/v1alpha1"
HOST_LOCAL = {"type": "host-local", "ranges": [[{"subnet": "10.56.0.0/16"}]], "perNode": True}


def test_one_value_gives_every_node_a_part_of_a_subnet():
    plugin = plugin_of({"ipam": {"range": "10.56.0.0/16"}})
    assert plugin == {"ipam": HOST_LOCAL}
    section = plugin_section(json.dumps(plugin).encode(), chained=True)
    assert json.loads(bytes(section))["ipam"] == HOST_LOCAL
    both = plugin_of({"ipam": {"range": "10.56.0.0/16,fd00:56::/64", "perNode": 1024}})
    assert both["ipam"]["ranges"] == [[{"subnet": "10.56.0.0/16"}], [{"subnet": "fd00:56::/64"}]]
    assert both["ipam"]["perNode"] == 1024


def test_each_rail_has_a_subnet_beside_configured_options_of_the_plugin():
    given = {"l2enable": False, "networks": {"rail0": {"l2enable": False}, "storage": {"l2enable": True}}}
    plugin = plugin_of(
        {
            "ipam": {"ranges": {"rail0": "10.60.0.0/16", "rail1": "10.61.0.0/16"}},
            "node": {"cni": {"plugin": given}},
        }
    )
    subnets = {name: each["ipam"]["ranges"] for name, each in plugin["networks"].items() if "ipam" in each}
    assert subnets == {"rail0": [[{"subnet": "10.60.0.0/16"}]], "rail1": [[{"subnet": "10.61.0.0/16"}]]}
    assert plugin["l2enable"] is plugin["networks"]["rail0"]["l2enable"] is False
    assert plugin["networks"]["storage"] == {"l2enable": True}
    plugin_section(json.dumps(plugin).encode(), chained=True)


@pytest.mark.parametrize(
    ("by", "stored", "apis", "expected"),
    [
        ("auto", None, (), "host-local"),
        ("auto", None, (WHEREABOUTS,), "whereabouts"),
        ("auto", "{}", (WHEREABOUTS,), "whereabouts"),
        ("auto", json.dumps({"ipam": {"type": "x"}}, separators=(",", ":")), (), "host-local"),
        ("auto", json.dumps({"ipam": HOST_LOCAL}, separators=(",", ":")), (WHEREABOUTS,), "host-local"),
        ("auto", '{"ipam":{"type":"whereabouts"}}', (), "whereabouts"),
        ("host-local", '{"ipam":{"type":"whereabouts"}}', (WHEREABOUTS,), "host-local"),
        ("whereabouts", json.dumps({"ipam": HOST_LOCAL}), (), "whereabouts"),
    ],
)
def test_whereabouts_gives_addresses_if_present_and_an_upgrade_keeps_the_choice(
    by: str, stored: str | None, apis: tuple[str, ...], expected: str
):
    ipam = plugin_of({"ipam": {"range": "10.56.0.0/16", "by": by}}, stored, apis)["ipam"]
    assert ipam == (
        HOST_LOCAL
        if expected == "host-local"
        else {"type": "whereabouts", "ipRanges": [{"range": "10.56.0.0/16"}]}
    )


@pytest.mark.parametrize(
    ("ipam", "plugin", "expected"),
    [
        (
            {"range": "10.56.0.0/16"},
            {"ipam": {"type": "static"}},
            "ipam.range and node.cni.plugin.ipam: both",
        ),
        (
            {"ranges": {"a": "10.56.0.0/16"}},
            {"networks": {"a": {"ipam": {"type": "static"}}}},
            "ipam.ranges.a and node.cni.plugin.networks.a.ipam: both are set",
        ),
    ],
)
def test_addresses_that_are_said_twice_are_refused(ipam: Json, plugin: Json, expected: str):
    with pytest.raises(TemplateError, match=re.escape(expected)):
        render({"ipam": ipam, "node": {"cni": {"plugin": plugin}}})


@pytest.mark.parametrize(
    "ipam",
    [
        {"range": "10.56.0.0"},
        {"range": "10.56.0.0/16, fd00::/64"},
        {"range": "a,b"},
        {"ranges": {"a": ""}},
        {"by": "dhcp"},
        {"perNode": False},
        {"perNode": 3},
        {"perNode": "24"},
        {"pernode": 24},
    ],
)
def test_schema_refuses_options_that_no_plugin_reads(ipam: Json):
    validator = jsonschema_rs.Draft7Validator(schema.values_schema())
    assert not validator.is_valid(with_values(default_values(), {"ipam": ipam}))
    assert validator.is_valid(with_values(default_values(), {"ipam": {"range": "10.56.0.0/16,fd00::/64"}}))


def test_values_reach_the_processes():
    objects = documents(render(MUCH))
    node = by_name(objects, "ConfigMap", "k8s-rdma-node")["data"]
    agent, server = yaml.safe_load(node["agent.yaml"]), yaml.safe_load(node["server.yaml"])
    assert agent["publish"] == {
        "leaseNamespace": "k8s-rdma",
        "rdmaNode": True,
        "renewS": 5,
        "vfResource": "k8s-rdma.io/vf",
    }
    assert agent["hardware"] == server["hardware"] == MUCH["hardware"]
    assert server["tls"]["clientCaFile"] == "/etc/k8s-rdma/tls/ca.crt"
    assert json.loads(node["plugin.json"]) == MUCH["node"]["cni"]["plugin"]
    extender = yaml.safe_load(by_name(objects, "ConfigMap", "k8s-rdma-extender")["data"]["extender.yaml"])
    assert (extender["source"], extender["listen"]) == ("http", "")
    assert by_name(objects, "Secret", "k8s-rdma-placement-key")["data"]["placement.key"] == "YSBrZXk="


@pytest.mark.parametrize("name", GIVEN)
def test_mounts_are_of_volumes_and_volumes_are_mounted(name: str):
    for each in documents(render(GIVEN[name])):
        if each["kind"] not in {"DaemonSet", "Deployment"}:
            continue
        pod = each["spec"]["template"]["spec"]
        mounted = {
            mount["name"]
            for container in [*pod.get("initContainers", ()), *pod["containers"]]
            for mount in container["volumeMounts"]
        }
        assert mounted == {volume["name"] for volume in pod["volumes"]}


@pytest.mark.parametrize(
    ("values", "offered"),
    [
        ({}, {"exact"}),
        ({"mount": True}, {"exact", "mount"}),
        ({"config": {"resources": [{"mode": "exclusive"}]}}, {"exclusive"}),
        ({"mount": True, "config": {"resources": [{"mode": "exclusive"}]}}, {"exclusive", "mount"}),
    ],
)
def test_all_of_dev_infiniband_is_offered_if_enabled(values: Json, offered: set[str]):
    (text,) = (
        each["data"]["device-plugin.yaml"]
        for each in documents(render({"node": {"devicePlugin": values}}))
        if each["kind"] == "ConfigMap" and "device-plugin.yaml" in each["data"]
    )
    assert {each["mode"] for each in yaml.safe_load(text)["resources"]} == offered


def of_configuration(values: Json, name: str) -> Json:
    """A process's file, as the chart has it."""
    (text,) = (
        each["data"][name]
        for each in documents(render(values))
        if each["kind"] == "ConfigMap" and name in each["data"]
    )
    return yaml.safe_load(text)


HTTP = {"extender": {"config": {"source": "http"}}}
TOKENS = {"node": {"server": {"tokensSecretName": "tokens"}}}
CLIENTS = {"node": {"server": {"tls": {"secretName": "tls", "clientCa": True}}}}
GETPFS = {"node": {"server": {"config": {"openPaths": ["/getpfs"]}}}}


@pytest.mark.parametrize(
    ("values", "server", "plugin"),
    [
        ({}, [], []),
        (HTTP, ["/v1/node"], []),
        (HTTP | GETPFS, ["/getpfs", "/v1/node"], []),
        (GETPFS, ["/getpfs"], []),
        (TOKENS, None, None),
        (CLIENTS, None, []),
        ({"node": {"server": {"tls": {"clientCa": True}}}}, [], []),  # without a certificate there is no TLS
    ],
)
def test_ports_of_nodes_are_open_only_for_clients_that_need_them(
    values: Json, server: list[str] | None, plugin: list[str] | None
):
    found = [of_configuration(values, f"{name}.yaml") for name in ("server", "device-plugin")]
    assert [each.get("openPaths") for each in found] == [server, plugin]
    tokens = "/etc/k8s-rdma/tokens/tokens" if values is TOKENS else None
    assert [each.get("tokenFile") for each in found] == [tokens, tokens]


def test_only_clients_of_configured_names_are_served_if_values_name_them():
    names = {"clientNames": ["scheduler"]}
    server = {"node": {"server": {"tls": {"secretName": "tls", "clientCa": True} | names}}}
    assert of_configuration(server, "server.yaml")["tls"].items() >= names.items()
    extender = {"extender": {"mode": "service", "tlsSecretName": "tls"} | names}
    assert of_configuration(extender, "extender.yaml")["tls"].items() >= names.items()
    assert not refused(server)
    assert not refused(extender)


def test_extender_that_asks_nodes_bears_their_token():
    assert "nodeTokenFile" not in of_configuration(TOKENS, "extender.yaml")
    asked = of_configuration(TOKENS | HTTP, "extender.yaml")
    assert asked["nodeTokenFile"] == "/etc/k8s-rdma/node-tokens/tokens"


MONITORED = {"monitoring": {"serviceMonitor": {"enabled": True}}}


def test_prometheus_bears_the_token():
    endpoints = [
        endpoint
        for each in documents(render(MONITORED | TOKENS))
        if each["kind"] == "ServiceMonitor"
        for endpoint in each["spec"]["endpoints"]
    ]
    assert [each["port"] for each in endpoints] == ["http", "device-plugin"]
    secret = {"credentials": {"name": "tokens", "key": "tokens"}}
    assert [each["authorization"] for each in endpoints] == [secret, secret]


def test_metrics_without_a_permitted_reader_are_refused():
    with pytest.raises(TemplateError, match=r"needs node\.server\.tokensSecretName"):
        render(MONITORED)
    opened = {"config": {"openPaths": ["/metrics"]}}
    assert render(MONITORED | {"node": {"server": opened, "devicePlugin": opened}})


def test_reading_processes_have_no_privilege():
    found = containers(documents(render({})))
    for name in ("server", "device-plugin", "cni", "extender", "kube-scheduler"):
        security = found[name]["securityContext"]
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert security["readOnlyRootFilesystem"]
        assert security["allowPrivilegeEscalation"] is False
    assert found["agent"]["securityContext"]["capabilities"]["drop"] == ["ALL"]


def test_token_of_the_nodes_account_is_the_agents_alone():
    objects = documents(render({}))
    assert (
        by_name(objects, "DaemonSet", "k8s-rdma-node")["spec"]["template"]["spec"][
            "automountServiceAccountToken"
        ]
        is False
    )
    holders = [
        name
        for name, each in containers(objects).items()
        if any(mount["name"] == "api" for mount in each["volumeMounts"])
    ]
    assert holders == ["agent"]


CLAIMS = GIVEN["claims"]
CLAIM_POLICIES = {
    f"k8s-rdma-{name}" for name in ("claims", "claims-order", "claim-caps", "one-pod", "slices")
}


def names_of(objects: list[Json], kind: str) -> set[str]:
    return {each["metadata"]["name"] for each in objects if each["kind"] == kind}


def test_dra_driver_is_rendered_if_enabled():
    without, objects = documents(render({})), documents(render(CLAIMS))
    assert not names_of(without, "DeviceClass")
    assert "k8s-rdma-claims" not in names_of(without, "ClusterRole")
    assert not names_of(without, "ValidatingAdmissionPolicy") & CLAIM_POLICIES
    assert names_of(objects, "ValidatingAdmissionPolicy") > CLAIM_POLICIES
    assert names_of(objects, "ValidatingAdmissionPolicyBinding") > CLAIM_POLICIES
    device_class = by_name(objects, "DeviceClass", DEVICE_CLASS)
    [selector] = device_class["spec"]["selectors"]
    assert selector["cel"]["expression"] == f'device.driver == "{DRIVER}"'


def test_device_class_may_have_another_name_which_policies_follow():
    objects = documents(render(with_values(CLAIMS, {"dra": {"deviceClass": "k8s-rdma"}})))
    assert names_of(objects, "DeviceClass") == {"k8s-rdma"}
    for name in ("k8s-rdma-claims", "k8s-rdma-claims-order"):
        [variable] = [
            each["expression"]
            for each in by_name(objects, "ValidatingAdmissionPolicy", name)["spec"]["variables"]
            if each["name"] == "deviceClasses"
        ]
        assert variable == "['k8s-rdma']"


def test_dra_driver_lists_numa_nodes_if_configured():
    for as_list in (False, True):
        objects = documents(render(with_values(CLAIMS, {"dra": {"numaNodeList": as_list}})))
        settings = by_name(objects, "ConfigMap", "k8s-rdma-claims")["data"]["claims.yaml"]
        plugin = fit(DevicePluginConfig, yaml.safe_load(settings))
        assert plugin.claims is not None
        assert plugin.claims.numa_node_list is as_list


RESOURCE = "k8s-rdma.io/vf"


def with_resource(name: str, **values: Json) -> Json:
    return with_values(CLAIMS, {"dra": {"extendedResourceName": name}, **values})


def test_device_class_has_an_extended_resource_if_configured():
    [of_default] = [each for each in documents(render(CLAIMS)) if each["kind"] == "DeviceClass"]
    assert "extendedResourceName" not in of_default["spec"]
    [found] = [each for each in documents(render(with_resource(RESOURCE))) if each["kind"] == "DeviceClass"]
    assert found["spec"] == of_default["spec"] | {"extendedResourceName": RESOURCE}


@pytest.mark.parametrize(
    ("name", "plugin"),
    [
        ("k8s-rdma.io/slot", {}),
        ("rdma-sriov/dev-infiniband-mount", {"mount": True}),
        ("tencent.com/rdma", {"config": {"resources": [{"mode": "exclusive"}]}}),
        ("rdma/vhca", {"config": {"resources": [{"mode": "exclusive", "name": "rdma/vhca"}]}}),
        (
            "rdma/vhca-shared",
            {"config": {"resources": [{"mode": "exclusive", "name": "rdma/vhca", "share": 4}]}},
        ),
        ("rdma/hca", {"config": {"resources": [{"mode": "shared", "name": "rdma/hca", "count": 1000}]}}),
    ],
)
def test_resource_of_the_device_plugin_is_no_resource_of_the_class(name: str, plugin: Json):
    why = rf"dra\.extendedResourceName: {name} is a resource of node\.devicePlugin, mode \w+, and a node's "
    with pytest.raises(TemplateError, match=why):
        render(with_resource(name, node={"devicePlugin": plugin}))
    assert render(with_resource(name, node={"devicePlugin": {**plugin, "enabled": False}}))
    assert render(with_resource(RESOURCE, node={"devicePlugin": plugin}))


@pytest.mark.parametrize(
    "values",
    [
        {"node": {"agent": {"config": {"publish": {"vfResource": RESOURCE}}}}},
        {"extender": {"config": {"vfResource": RESOURCE}}},
    ],
)
def test_vfs_that_agents_count_are_no_resource_of_the_class(values: Json):
    with pytest.raises(TemplateError, match=rf"dra\.extendedResourceName: {RESOURCE} is vfResource, "):
        render(with_resource(RESOURCE, **values))
    assert render(with_resource("k8s-rdma.io/nic", **values))


def test_extended_resource_needs_a_kubernetes_with_the_feature():
    with pytest.raises(TemplateError, match=r"dra\.extendedResourceName: needs Kubernetes 1\.36"):
        render(with_resource(RESOURCE), kubernetes="v1.35.1")


DRANET = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "rdma", "namespace": ""},
    "spec": {"selectors": [{"cel": {"expression": 'device.driver == "dra.net"'}}]},
}
"""The class of github.com/google/dranet's examples, by the name that ours has."""


def test_device_class_of_another_driver_is_left_alone():
    with pytest.raises(TemplateError, match=r"dra\.deviceClass: the DeviceClass rdma is of another driver"):
        render(CLAIMS, cluster=[DRANET])
    assert render(with_values(CLAIMS, {"dra": {"deviceClass": "k8s-rdma"}}), cluster=[DRANET])
    ours = {**DRANET, "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]}}
    assert render(CLAIMS, cluster=[ours])


def test_dra_driver_has_kubelets_directories_and_the_token_of_its_pod():
    objects = documents(render(with_values(CLAIMS, {"node": {"kubeletDir": "/srv/kubelet"}})))
    settings = by_name(objects, "ConfigMap", "k8s-rdma-claims")["data"]["claims.yaml"]
    plugin = fit(DevicePluginConfig, yaml.safe_load(settings))
    assert (plugin.in_cluster, plugin.resources, plugin.open_paths) == (True, (), ())
    assert plugin.claims == ClaimsConfig(
        plugins_dir="/srv/kubelet/plugins", registry_dir="/srv/kubelet/plugins_registry"
    )
    mounts = containers(objects)["dra-driver"]["volumeMounts"]
    paths = {each["mountPath"] for each in mounts if not each.get("readOnly")}
    assert paths > {f"{plugin.claims.plugins_dir}/{DRIVER}", plugin.claims.registry_dir}
    assert {each["name"] for each in mounts} > {"api"}
    assert "claims" not in of_configuration(CLAIMS, "device-plugin.yaml")


def test_dra_driver_is_replaced_beside_its_former_pod():
    """Kubelet deletes the slices of a driver that is away; two pods cannot have one port of the node."""
    objects = documents(render(CLAIMS))
    driver = by_name(objects, "DaemonSet", "k8s-rdma-claims")["spec"]
    assert driver["updateStrategy"]["rollingUpdate"] == {"maxSurge": "10%", "maxUnavailable": 0}
    pod = driver["template"]["spec"]
    assert not pod.get("hostNetwork")
    [container] = pod["containers"]
    assert not any("hostPort" in port for port in container["ports"])
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert container["args"][-2:] == ["--pod-uid", "$(POD_UID)"]


def test_dra_driver_needs_no_device_plugin_and_goes_before_an_uninstallation():
    objects = documents(render(with_values(CLAIMS, {"node": {"devicePlugin": {"enabled": False}}})))
    assert {"agent", "dra-driver"} <= containers(objects).keys()
    objects = documents(render(with_values(CLAIMS, {"node": {"uninstall": True}})))
    assert names_of(objects, "DaemonSet") == {"k8s-rdma-node"}


def test_role_of_the_dra_driver_is_of_the_account_of_its_pod():
    objects = documents(render(CLAIMS, namespace="elsewhere"))
    [subject] = by_name(objects, "ClusterRoleBinding", "k8s-rdma-claims")["subjects"]
    pod = by_name(objects, "DaemonSet", "k8s-rdma-claims")["spec"]["template"]["spec"]
    account = pod["serviceAccountName"]
    assert subject == {"kind": "ServiceAccount", "name": account, "namespace": "elsewhere"}
    assert account in names_of(objects, "ServiceAccount")


@pytest.mark.parametrize(
    ("values", "kubernetes", "says"),
    [
        ({"dra": {"enabled": True}}, "v1.33.4", "dra.enabled: needs Kubernetes 1.36"),
        ({"hardware": CLAIMS["hardware"]}, "v1.36.2", r"hardware.pfs\[\].use: claims needs dra.enabled"),
        (
            {"hardware": {"pfs": [{"claims": {"vfs": 2, "mbps": 1_000}}]}},
            "v1.36.2",
            r"hardware.pfs\[\].claims needs dra.enabled",
        ),
    ],
)
def test_dra_driver_that_could_not_work_is_refused(values: Json, kubernetes: str, says: str):
    with pytest.raises(TemplateError, match=says):
        render(values, kubernetes=kubernetes)


def test_network_is_in_place_before_the_agent_offers_the_node():
    (pod,) = (
        each["spec"]["template"]["spec"] for each in documents(render({})) if each["kind"] == "DaemonSet"
    )
    first = pod["initContainers"][-1]
    (after,) = (each for each in pod["containers"] if each["name"] == "cni")
    assert (first["args"][:-1], first["args"][-1]) == (after["args"][:-1], "--wait")


def test_other_settings_make_other_pods():
    def annotations(values: Json) -> list[str]:
        workloads = [
            each for each in documents(render(values)) if each["kind"] in {"DaemonSet", "Deployment"}
        ]
        return [
            each["spec"]["template"]["metadata"]["annotations"]["k8s-rdma.io/configuration"]
            for each in workloads
        ]

    before = annotations({})
    assert annotations({}) == before
    node, extender = (
        annotations({"node": {"cni": {"plugin": {"l2enable": True}}}}),
        annotations({"extender": {"config": {"strategy": "spread"}}}),
    )
    assert [each in before for each in node] != [True, True]
    assert [each in before for each in extender] != [True, True]


def test_another_namespace_has_everything():
    rendered = render(MUCH, namespace="elsewhere")
    text = "\n".join(rendered.values())
    assert "namespace: k8s-rdma" not in text
    assert "system:serviceaccount:k8s-rdma:" not in text
    assert "system:serviceaccount:elsewhere:k8s-rdma-agent" in text
    objects = documents(render({}, namespace="elsewhere"))
    others = {
        each["metadata"]["name"]
        for each in objects
        if each["metadata"].get("namespace", "elsewhere") != "elsewhere"
    }
    assert others == {"k8s-rdma-scheduler-authentication-reader"}


@pytest.mark.parametrize("mode", ["second-scheduler", "service"])
def test_extender_prefers_nodes_of_the_control_plane_without_requiring_them(mode: str):
    values = SERVICE if mode == "service" else {}
    [pod] = [
        each["spec"]["template"]["spec"] for each in documents(render(values)) if each["kind"] == "Deployment"
    ]
    [preferred] = pod["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    label = {"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}
    assert preferred["preference"]["matchExpressions"] == [label]
    assert {"key": label["key"], "effect": "NoSchedule"} in pod["tolerations"]
    assert "requiredDuringSchedulingIgnoredDuringExecution" not in pod["affinity"]["nodeAffinity"]
    assert not pod["nodeSelector"]


LENIENT = {"extender": {"config": {"strict": False}}, "node": {"agent": {"config": {"strict": False}}}}


ELSEWHERE = {"extender": {"enabled": False}}


@pytest.mark.parametrize(
    ("values", "refused"),
    [({}, True), (LENIENT, False), (ELSEWHERE, True), ({**ELSEWHERE, "node": LENIENT["node"]}, False)],
)
def test_policy_refuses_unknown_keys_if_extender_and_agents_do(values, refused):
    objects = documents(render(values))
    policy = read_policy(by_name(objects, "ValidatingAdmissionPolicy", "k8s-rdma-annotation"))

    def refusals(text):
        metadata = {"annotations": {"rdma_interfaces_required": text}}
        return policy.refusals({"kind": "Pod", "apiVersion": "v1", "metadata": metadata, "spec": {}})

    assert bool(refusals('[{"min_tx_rat": 1}]')) is refused
    assert refusals('[{"min_tx_rate": "one"}]')


@pytest.mark.parametrize(
    "absent", [{"namespacePolicies": None}, {"placementKey": {"signingSecretName": None}}], ids=str
)
def test_values_of_an_older_chart_alone_are_refused(absent: Json):
    """With --reuse-values Helm has the defaults of the release before, but not those of this chart."""
    with pytest.raises(TemplateError, match="use --reset-then-reuse-values"):
        render(absent)


def test_extender_and_agents_that_would_judge_otherwise_are_refused():
    with pytest.raises(TemplateError, match=r"node\.agent\.config\.strict: must be the same"):
        render({"extender": {"config": {"strict": False}}})


NOTHING_SAID = {
    "node": {name: {"config": None} for name in ("init", "agent", "server", "devicePlugin")},
    "extender": {"config": None},
}


@pytest.mark.parametrize("kubernetes", ["v1.31.0", "v1.36.2"])
@pytest.mark.parametrize("more", [{}, SERVICE["extender"]])
def test_processes_without_values_have_their_defaults(kubernetes: str, more: Json):
    """`config:` without anything below it is null, by which Helm takes the default away."""
    values = {**NOTHING_SAID, "extender": {**more, **NOTHING_SAID["extender"]}}
    assert not refused(values)
    objects = documents(render(values, kubernetes=kubernetes))
    said = yaml.safe_load(by_name(objects, "ConfigMap", "k8s-rdma-extender")["data"]["extender.yaml"])
    assert said["leaseNamespace"] == "k8s-rdma"
    assert "source" not in said


def without_values(values: Json, section: tuple[str, ...] = ()) -> Json:
    """Null in place of each value that is no section."""
    optional = {("namespacePolicies",), ("placementKey", "signingSecretName")}  # an older chart lacks them
    return {
        key: without_values(value, (*section, key)) if isinstance(value, dict) and value else None
        for key, value in values.items()
        if (*section, key) not in optional
    }


def stable(values: Json) -> list[Json]:
    """The objects that are not random."""
    return [each for each in documents(render(values)) if each["kind"] != "Secret"]


DEFAULTS = default_values()


@pytest.mark.parametrize(
    "empty",
    [
        *({name: None} for name in DEFAULTS if name != "namespacePolicies"),
        {"node": dict.fromkeys(("init", "agent", "server", "devicePlugin", "cni"))},
        {
            "node": {"server": {"tls": None}},
            "extender": {"scheduler": None},
            "monitoring": {"serviceMonitor": None},
        },
        {"extender": {"scheduler": {"image": None}}, "injection": {"webhook": None}},
        {"node": {"kubeletDir": None, "priorityClassName": None, "podLabels": None, "cni": {"binDir": None}}},
        {"extender": {"replicas": None, "mode": None, "scheduler": {"weight": None, "name": None}}},
    ],
    ids=str,
)
def test_key_without_a_value_has_its_default(empty: Json):
    """A section that has only comments is null, and Helm would take it away."""
    assert stable(empty) == stable({})


@pytest.mark.parametrize("more", [{}, {"viewers": {"enabled": True}, "web": {"enabled": True}}], ids=str)
def test_chart_renders_without_any_value(more: Json):
    assert stable(with_values(without_values(DEFAULTS), more))


def test_chart_that_is_disabled_without_a_parent_is_refused():
    assert documents(render({"enabled": True}))
    with pytest.raises(TemplateError, match="enabled: false counts as the condition of a parent chart"):
        render({"enabled": False})


@pytest.mark.parametrize(
    "path", [*(CHART / "templates").rglob("*.yaml"), CHART / "templates" / "NOTES.txt"], ids=str
)
def test_template_begins_with_defaults_for_keys_without_a_value(path: Path):
    assert path.read_text().startswith('{{- include "k8s-rdma.complete" . -}}\n')


def test_defaults_of_keys_without_a_value_are_those_of_the_values():
    assert (CHART / "files" / "defaults.json").read_text() == schema.defaults_text(), "make chart"


@pytest.mark.parametrize("uninstall", [False, True])
def test_node_without_values_is_rendered(uninstall: bool):
    assert documents(render(with_values(NOTHING_SAID, {"node": {"uninstall": uninstall}})))


def test_second_scheduler_is_of_the_clusters_release():
    found = containers(documents(render({}, kubernetes="v1.31.5-gke.100")))
    assert found["kube-scheduler"]["image"] == "registry.k8s.io/kube-scheduler:v1.31.5"


# The renderer


def test_function_that_the_renderer_has_not_is_refused():
    with pytest.raises(TemplateError, match='function "upper" not defined'):
        render_templates({"context": {}, "templates": {"a.yaml": "{{ upper .Values.x }}"}, "files": {}})


TEXT = st.text(st.sampled_from([*string.printable.strip(), " ", "\n", "\t", "é"]))
JSON: SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**31), 2**31)
    | TEXT
    | st.sampled_from(["no", "1e3", "a: b", "- a"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=25)
@given(st.lists(JSON, min_size=20, max_size=20))
def test_values_come_out_as_they_went_in(values: list[Any]):
    text = render_templates(
        {"context": {"Values": values}, "templates": {"a.yaml": "{{ toYaml .Values }}"}, "files": {}}
    )["a.yaml"]
    assert yaml.safe_load(text) == values


# Pages for people


def _of_web(values: Json) -> dict[str, Json]:
    """Objects of the pages by kind."""
    return {
        each["kind"]: each for each in documents(render(values)) if each["metadata"]["name"] == "k8s-rdma-web"
    }


def test_pages_are_rendered_if_enabled():
    assert _of_web({}) == {}
    assert _of_web({"viewers": {"enabled": True}}) == {}


def test_pages_are_on_loopback_without_a_token_by_default():
    objects = _of_web(GIVEN["web"])
    assert set(objects) == {"ConfigMap", "Deployment"}
    pod = objects["Deployment"]["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in pod
    assert "hostNetwork" not in pod
    (container,) = pod["containers"]
    assert "ports" not in container
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["runAsUser"] == 65532
    config = fit(WebConfig, yaml.safe_load(objects["ConfigMap"]["data"]["web.yaml"]))
    assert (config.listen, config.access) == ("127.0.0.1", "loopback")
    assert config.extender.url == "http://k8s-rdma-views.k8s-rdma.svc:8889"


def test_pages_read_nodes_by_plain_http_with_the_token_that_their_servers_demand():
    def nodes_of(values: Json) -> Any:
        return yaml.safe_load(_of_web(values)["ConfigMap"]["data"]["web.yaml"]).get("nodes")

    tokens = "/etc/k8s-rdma/tokens/tokens"
    assert nodes_of(GIVEN["web"]) == {"port": 54005, "tokenFile": tokens}
    assert nodes_of(GIVEN["web"] | {"node": {"server": {"config": {"port": 8005}}}})["port"] == 8005
    assert nodes_of(GIVEN["web"] | {"node": {"server": {"tls": {"secretName": "tls"}}}}) is None


@pytest.mark.parametrize("client_ca", [False, True])
def test_pages_read_nodes_over_tls_with_the_authority_and_certificate_of_a_secret(client_ca: bool):
    tls = {"secretName": "tls", "clientCa": client_ca}
    ours = {"secretName": "web-to-nodes", "serverName": "node.rdma.example"}
    objects = _of_web(
        {**GIVEN["web"], "node": {"server": {"tls": tls}}, "web": {**GIVEN["web"]["web"], "nodeTls": ours}}
    )
    config = fit(WebConfig, yaml.safe_load(objects["ConfigMap"]["data"]["web.yaml"]))
    files = "/etc/k8s-rdma/node-tls"
    assert config.nodes is not None
    assert config.nodes.tls == NodeTls(
        ca_file=f"{files}/ca.crt",
        server_name="node.rdma.example",
        cert_file=f"{files}/tls.crt" if client_ca else None,
        key_file=f"{files}/tls.key" if client_ca else None,
    )
    pod = objects["Deployment"]["spec"]["template"]["spec"]
    volumes = {each["name"]: each for each in pod["volumes"]}
    assert volumes["node-tls"]["secret"]["secretName"] == "web-to-nodes"
    mounts = {each["name"]: each["mountPath"] for each in pod["containers"][0]["volumeMounts"]}
    assert mounts["node-tls"] == files


def test_pages_read_claims_if_pods_may_use_them():
    objects = _of_web(GIVEN["web"] | {"dra": {"enabled": True}})
    assert "ServiceAccount" in objects
    assert "ClusterRole" not in objects, "it may not review tokens"
    assert objects["Deployment"]["spec"]["template"]["spec"]["serviceAccountName"] == "k8s-rdma-web"
    config = fit(WebConfig, yaml.safe_load(objects["ConfigMap"]["data"]["web.yaml"]))
    assert config.claims
    assert not fit(WebConfig, yaml.safe_load(_of_web(GIVEN["web"])["ConfigMap"]["data"]["web.yaml"])).claims


def test_pages_behind_a_proxy_are_reviewed_and_encrypted():
    objects = _of_web(GIVEN["reviewed web"])
    assert {"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Service"} <= set(objects)
    pod = objects["Deployment"]["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == "k8s-rdma-web"
    config = fit(WebConfig, yaml.safe_load(objects["ConfigMap"]["data"]["web.yaml"]))
    assert (config.listen, config.access) == ("", "reviews")
    assert config.tls is not None
    (port,) = objects["Service"]["spec"]["ports"]
    (container,) = pod["containers"]
    assert port["targetPort"] in {each["name"] for each in container["ports"]}


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"web": {"enabled": True}}, "web.enabled: needs viewers.enabled"),
        (
            {**GIVEN["web"], "extender": {"enabled": False}},
            "web.enabled: needs viewers.enabled and extender.enabled",
        ),
        ({**GIVEN["web"], "web": {"enabled": True, "access": "reviews"}}, "web.tlsSecretName: needed"),
    ],
)
def test_pages_that_could_not_work_are_refused(values: Json, says: str):
    with pytest.raises(TemplateError, match=re.escape(says)):
        render(values)
