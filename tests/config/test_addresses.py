"""Ports and paths that more than one program has by default are written in one module each."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import k8s_rdma
from k8s_rdma.config import addresses
from k8s_rdma.config.processes import CONFIGURATIONS
from k8s_rdma.core import node_paths

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(k8s_rdma.__path__[0])
ELSEWHERE = {addresses.NAMESPACE}
"""Texts that have other meanings, too: the chart's namespace is also the name of program and package."""


def names_by_value(module: object) -> dict[object, str]:
    found = {value: name for name, value in vars(module).items() if name.isupper()}
    return {value: name for value, name in found.items() if value not in ELSEWHERE}


def test_default_is_written_in_its_module_alone():
    defaults = {
        value: f"{module.__name__}.{name}"
        for module in (addresses, node_paths)
        for value, name in names_by_value(module).items()
    }
    faults = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}: {node.value!r}: import {defaults[node.value]}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.name not in ("addresses.py", "node_paths.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and type(node.value) in (int, str) and node.value in defaults
    ]
    assert not faults, "a default that several programs have is imported from its module:\n" + "\n".join(
        faults
    )


def test_chart_has_the_ports_of_the_processes():
    templates = ROOT / "deploy" / "chart" / "templates"
    helpers = (templates / "_helpers.tpl").read_text()
    found = dict(re.findall(r'define "k8s-rdma\.([\w-]+)-port" -}}\n.*\| default (\d+) -}}', helpers))
    assert {name: int(port) for name, port in found.items()} == {
        "server": addresses.SERVER_PORT,
        "device-plugin": addresses.DEVICE_PLUGIN_PORT,
        "extender": addresses.EXTENDER_PORT,
    }
    for path, port in (
        ("web/web.yaml", addresses.WEB_PORT),
        ("injection/_parts.tpl", addresses.WEBHOOK_PORT),
    ):
        assert f"\nport: {port}\n" in (templates / path).read_text()
    spelt = {
        str(path.relative_to(templates))
        for path in templates.rglob("*")
        if path.is_file() and re.search(r"\b(5400[56]|8888)\b", path.read_text())
    }
    assert spelt == {"_helpers.tpl"}, "templates include the ports of _helpers.tpl"


def test_cni_executable_looks_for_the_agent_in_the_directory_of_its_sockets():
    assert f'.run_dir = "{node_paths.RUN_DIR}",' in (ROOT / "cni" / "netconf.c").read_text()


def test_process_has_its_configuration_in_one_module():
    modules = {command: model.__module__ for command, model in CONFIGURATIONS.items()}
    files = {path.stem for path in (PACKAGE / "config").glob("*.py")}
    assert {module.removeprefix("k8s_rdma.config.") for module in modules.values()} <= files
    assert len(set(modules.values())) == len(modules)
