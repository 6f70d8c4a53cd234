"""Command lines of the programs that the device plugin replaces, without a file of ours."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import msgspec
import pytest
from typer.testing import CliRunner

from deviceplugin.plugin_process import MOUNT, SLOTS, World, follows
from k8s_rdma import __version__
from k8s_rdma.cli.device_plugin import CommandLine, read_command_line
from k8s_rdma.cli.main import app
from k8s_rdma.config.devices import (
    ExactResource,
    ExclusiveResource,
    MountResource,
    Selector,
    SharedResource,
    SharedSelector,
)
from k8s_rdma.errors import MalformedError

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result


needs_mounts = pytest.mark.skipif(os.geteuid() != 0, reason="needs a mount namespace of its own")
MELLANOX = {"configList": [{"resourceName": "hca", "rdmaHcaMax": 7, "devices": ["ib0"]}]}


def resources(
    absent: Path, *, config: str | None = None, **options: dict[str, str]
) -> tuple[SharedResource, ...]:
    line = CommandLine(
        config=config, hustcat=options.get("hustcat", {}), mellanox=options.get("mellanox", {})
    )
    return read_command_line(line, default_file=absent).config.resources


def command(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["device-plugin", *arguments])


def test_hustcats_options_are_an_exclusive_resource(tmp_path: Path) -> None:
    absent = tmp_path / "absent.json"
    assert resources(absent, hustcat={"--verbosity": "4"}) == (ExclusiveResource(name="tencent.com/rdma"),)
    assert resources(absent, hustcat={"--master": "", "--resource-name": ""}) == (ExclusiveResource(),)
    assert resources(absent, hustcat={"--master": "eth1", "--resource-name": "a.b/c"}) == (
        ExclusiveResource(name="a.b/c", select=Selector(pfs=("eth1",), functions="vf")),
    )


def test_mount_is_offered_without_a_file_as_rits_program_did_and_by_no_file_that_does_not_say_so(
    tmp_path: Path,
) -> None:
    absent, empty = tmp_path / "absent.json", tmp_path / "device-plugin.yaml"
    empty.write_text("rescanS: 30\n")
    assert resources(absent) == (ExactResource(), MountResource())
    assert resources(absent, config=str(empty)) == (ExactResource(),)


def test_mellanox_file_is_read_at_the_path_of_its_program(tmp_path: Path) -> None:
    default, other = tmp_path / "config.json", tmp_path / "other.json"
    select = SharedSelector(if_names=("ib0",))
    shared = SharedResource(name="rdma/hca", count=7, max_per_container=7, select=select)
    default.write_text(json.dumps(MELLANOX))
    other.write_text(json.dumps({"configList": [MELLANOX["configList"][0] | {"resourcePrefix": "x.y"}]}))
    assert resources(default) == (shared,)
    [by_cdi] = resources(default, mellanox={"--use-cdi": ""})
    assert by_cdi == msgspec.structs.replace(shared, cdi=True)
    for named in ({"mellanox": {"--config-file": str(other)}}, {"config": str(other)}):
        assert [each.name for each in resources(default, **named)] == ["x.y/hca"]
    default.unlink()
    with pytest.raises(MalformedError, match=r"config\.json: No such file"):
        resources(default, mellanox={"--use-cdi": ""})


def test_empty_configuration_offers_the_resource_of_rits_plugin(tmp_path: Path) -> None:
    assert MOUNT in [each.name for each in resources(tmp_path / "absent.json")]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"hustcat": {"--master": "eth1"}, "config": "x.yaml"}, "--config and --master"),
        ({"mellanox": {"--config-file": "x.json"}, "config": "x.yaml"}, "--config and --config-file"),
        ({"hustcat": {"--master": "eth1"}, "mellanox": {"--use-cdi": ""}}, "--master and --use-cdi"),
    ],
)
def test_options_that_contradict_each_other_are_named(tmp_path: Path, options: dict, named: str) -> None:
    with pytest.raises(MalformedError, match=f"command line: {named} do not go together"):
        resources(tmp_path / "absent.json", **options)


def test_use_cdi_is_refused_with_a_file_whose_resources_say_so_themselves(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text("resources: [{mode: exact}]")
    with pytest.raises(MalformedError, match=r"own\.yaml: has no configList, which --use-cdi is for"):
        resources(tmp_path / "absent.json", config=str(file), mellanox={"--use-cdi": ""})


@pytest.mark.parametrize("key", ["inCluster", "kubeconfig"])
def test_credentials_are_refused_without_the_node_whose_events_they_are_for(tmp_path: Path, key: str) -> None:
    (tmp_path / "kubeconfig").write_text(
        "{current-context: c, contexts: [{name: c, context: {cluster: c}}], "
        "clusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]}"
    )
    file = tmp_path / "own.yaml"
    file.write_text(f"{key}: {'true' if key == 'inCluster' else tmp_path / 'kubeconfig'}")
    refused = command("--config", str(file), "--check-config")
    assert f"own.yaml: {key}: is for events of a node" in str(refused.exception)
    assert command("--config", str(file), "--node", "w1", "--check-config").stdout == "ok\n"


def test_uid_of_its_pod_is_that_of_the_drivers_sockets(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    file.write_text(json.dumps({"claims": {}, "node": "w1", "kubeconfig": "/none", "resources": []}))

    def uid(pod_uid: str) -> str | None:
        line = CommandLine(config=str(file), pod_uid=pod_uid, hustcat={}, mellanox={})
        claims = read_command_line(line).config.claims
        return claims.uid if claims else None

    assert uid("8a5e3f9c-0000-4000-8000-000000000001") == "8a5e3f9c-0000-4000-8000-000000000001"
    with pytest.raises(MalformedError, match=r"command line: --pod-uid \.\./x: "):
        uid("../x")


@pytest.mark.parametrize("option", ["-version", "--version", "-v"])
def test_version_is_printed_by_every_option(option: str) -> None:
    assert command(option).output == f"k8s-rdma {__version__}\n"


def test_configuration_is_checked_and_keys_without_effect_are_named(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(MELLANOX | {"mode": "hca"}))
    checked = command("-config-file", str(file), "--check-config")
    assert (checked.exit_code, checked.stdout, checked.stderr) == (0, "ok\n", "mode: has no effect\n")
    file.write_text("resources: []")
    refused = command("--config", str(file), "--check-config")
    assert refused.exit_code == 1
    assert "resources: is empty" in str(refused.exception)


def test_unknown_option_is_refused() -> None:
    assert command("-mastre", "eth1").exit_code == 2


def test_schema_names_every_mode() -> None:
    schema = json.loads(command("--print-schema").output)
    modes = json.dumps(schema)
    assert all(f'"{mode}"' in modes for mode in ("exact", "mount", "exclusive", "shared"))


@needs_mounts
@pytest.mark.anyio
@pytest.mark.parametrize(
    ("arguments", "offered", "socket"),
    [
        (("-master", "eth1", "-v", "4", "-log-level=debug"), "tencent.com/rdma", "rdma.sock"),
        (("-logtostderr", "-resource-name", "a.b/c"), "a.b/c", "a.b_c.sock"),
    ],
)
async def test_hustcats_command_line_registers_its_resource(
    world: World, arguments: tuple[str, ...], offered: str, socket: str
) -> None:
    async with world.kubelet() as kubelet:
        plugin = world.in_default_directory(*arguments)
        await kubelet.wait_for(lambda: [each.resource for each in kubelet.registrations] == [offered])
        assert world.names() == {socket}
        assert await plugin.stop() == 0
    assert world.names() == set()


@needs_mounts
@pytest.mark.anyio
async def test_bare_command_line_registers_the_resource_of_rits_plugin(world: World) -> None:
    async with world.kubelet() as kubelet:
        world.in_default_directory()
        await follows(kubelet, SLOTS, MOUNT)


@needs_mounts
@pytest.mark.anyio
async def test_mellanox_command_line_registers_the_resources_of_its_file(world: World) -> None:
    file = world.directory / "config.json"
    file.write_text(json.dumps({**MELLANOX, "unknown": 1}))
    async with world.kubelet() as kubelet:
        plugin = world.in_default_directory("--config-file", str(file), "-use-cdi=false")
        await follows(kubelet, "rdma/hca")
        assert kubelet.capacity()["rdma/hca"].capacity == 7
        [ignored] = plugin.events("setting_ignored")
        assert ignored["key"] == "unknown"
