"""The configuration file: contradictions, the files it names, its schema, and the command that checks it."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any

import pytest

from k8s_rdma.config.extender import ExtenderConfig
from k8s_rdma.config.files import config_schema, load_config
from k8s_rdma.errors import MalformedError
from warm_program import run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

WHOLE: dict[str, Any] = {
    "listen": "",
    "filterPath": "/f",
    "tls": {"certFile": "/a", "keyFile": "/b", "clientCaFile": "/c"},
    "nodeTls": {"caFile": "/a", "certFile": "/b", "keyFile": "/c", "serverName": "n"},
    "limits": [{"namespace": "*", "reservedMbps": 1}, {"namespace": "a", "vfs": 0}],
    "strategy": "spread",
    "staleS": 30,
}


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"bindPath": "/a", "filterPath": "/a"}, "filterPath and bindPath: both are /a"),
        ({"preemptPath": "/scheduler/prioritize"}, "prioritizePath and preemptPath: both are"),
        ({"preemptPath": "/healthz"}, "preemptPath: /healthz is a path of the extender's own"),
        ({"filterPath": "/v1/explain"}, "filterPath: /v1/explain is a path of the extender's own"),
        ({"api": False}, "api and binder: "),
        ({"api": False, "binder": "scheduler"}, "api and source: "),
        ({"api": False, "binder": "scheduler", "source": "http", "kubeconfig": "/k"}, "api and kubeconfig: "),
        ({"nodeTls": {"caFile": "/a", "certFile": "/b"}}, "nodeTls.certFile and nodeTls.keyFile: "),
        ({"nodeTls": {"caFile": "/a", "keyFile": "/b"}}, "nodeTls.keyFile and nodeTls.certFile: "),
        ({"source": "http", "maxAgeS": 61}, "maxAgeS and staleS: "),
        ({"vfResource": ""}, "vfResource: ''; wanted a domain"),
        ({"vfResource": "vf"}, "vfResource: 'vf'; wanted a domain"),
        ({"source": "http", "nodeTimeoutS": 16}, "nodeTimeoutS and staleS: "),
        ({"limits": [{"namespace": "a"}, {"namespace": "a"}]}, "limits[1].namespace: 'a' is limited twice"),
    ],
)
def test_impossible_configuration_is_refused_naming_its_fields(
    tmp_path: Path, settings: dict[str, Any], told: str
) -> None:
    (tmp_path / "extender.yaml").write_text(json.dumps(settings))
    with pytest.raises(MalformedError) as refused:
        load_config(ExtenderConfig, str(tmp_path / "extender.yaml"), {})
    assert refused.value.message.startswith(f"{tmp_path / 'extender.yaml'}: line 1: {told}")


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"limits": [{"namespace": "Team_A"}]}, "limits[0].namespace: Team_A; wanted a namespace's name"),
        (
            {"limits": [{"namespace": "a", "vfs": -1}]},
            "limits[0].vfs: -1; wanted a whole number of at least 0",
        ),
        ({"strategy": "best"}, "strategy: best; wanted "),
    ],
)
def test_value_that_can_be_of_no_use_is_refused_by_its_field(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(MalformedError, match=re.escape(field)):
        load_config(ExtenderConfig, None, settings)


def test_all_contradictions_are_reported_at_once() -> None:
    with pytest.raises(MalformedError, match=r"filterPath and bindPath.*; api and binder"):
        load_config(ExtenderConfig, None, {"filterPath": "/a", "bindPath": "/a", "api": False})


@pytest.mark.parametrize(
    "settings",
    [
        {"api": False, "binder": "scheduler", "source": "http"},
        {"source": "crd", "maxAgeS": 3600, "nodeTimeoutS": 600},
        {"source": "http", "maxAgeS": 60, "nodeTimeoutS": 15},
        {"source": "crd", "binder": "scheduler"},
        WHOLE,
    ],
)
def test_configuration_without_a_contradiction_is_taken(settings: dict[str, Any]) -> None:
    assert load_config(ExtenderConfig, None, settings)


def test_schema_has_every_key_of_the_file_and_no_other() -> None:
    schema = json.loads(command("extender", "--print-schema")[1])
    assert schema == json.loads(config_schema(ExtenderConfig))
    assert schema["$ref"] == "#/$defs/ExtenderConfig"
    ours = schema["$defs"]["ExtenderConfig"]
    assert set(ours["properties"]) == set(ExtenderConfig.__struct_encode_fields__)
    objects = [defined for defined in schema["$defs"].values() if defined.get("type") == "object"]
    assert len(objects) >= 4
    assert all(defined["additionalProperties"] is False for defined in objects)
    assert ours["properties"]["port"]["maximum"] == 65535


def command(*arguments: str) -> tuple[int, str, str]:
    """Return the exit status and output of `k8s-rdma extender`, without a port of the environment's."""
    environment = {name: value for name, value in os.environ.items() if name != "PORT"}
    ended = run(arguments, environment)
    return ended.returncode, ended.stdout, ended.stderr


def write(directory: Path, settings: dict[str, Any]) -> Sequence[str]:
    (directory / "extender.yaml").write_text(json.dumps(settings))
    return ("extender", "--check-config", "--config", str(directory / "extender.yaml"))


def test_command_says_ok_when_the_configuration_and_its_files_can_be_used(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("a secret of placements\n")
    (tmp_path / "tokens").write_text("secret\n")
    settings = {"placementKeyFile": str(tmp_path / "key"), "tokenFile": str(tmp_path / "tokens")}
    assert command(*write(tmp_path, settings)) == (0, "ok\n", "")


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"nodePorts": 1}, "extender.yaml: line 1: nodePorts: unknown key; did you mean nodePort?"),
        ({"api": False}, "extender.yaml: line 1: api and binder: "),
        ({"placementKeyFile": "/none"}, "placementKeyFile /none: No such file"),
        ({"tokenFile": "/none"}, "tokenFile /none: No such file"),
        ({"tls": {"certFile": "/none", "keyFile": "/none"}}, "tls.certFile /none: No such file"),
        ({"nodeTls": {"caFile": "/none"}}, "nodeTls.caFile /none: No such file"),
        ({"nodeTokenFile": "/none"}, "nodeTokenFile /none: No such file"),
        ({"kubeconfig": "/none"}, "/none: no usable kubeconfig"),
    ],
)
def test_command_names_unusable_settings_and_fails(
    tmp_path: Path, settings: dict[str, Any], told: str
) -> None:
    status, said, error = command(*write(tmp_path, settings))
    assert (status, said) == (2, "")
    assert error.startswith("k8s-rdma: ")
    assert told in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("process", ["init", "server", "agent"])
def test_other_processes_check_theirs_too(tmp_path: Path, process: str) -> None:
    (tmp_path / "ours.yaml").write_text("node: w1\n" if process == "agent" else "{}\n")
    arguments = (process, "--check-config", "--config", str(tmp_path / "ours.yaml"))
    assert command(*arguments) == (0, "ok\n", "")
    (tmp_path / "ours.yaml").write_text("nodes: w1\n")
    assert command(*arguments)[0] == 2
