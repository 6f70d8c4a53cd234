from __future__ import annotations

import json
from pathlib import Path

import pytest

from k8s_rdma.errors import MalformedError
from k8s_rdma_demo.cluster.conflist import Conflist, load_conflist

RECORDINGS = Path(__file__).parents[2] / "recordings" / "cni"


def recorded(*commands: str) -> list[str]:
    return sorted(path.stem for path in RECORDINGS.glob("*.json") if path.stem.split("-")[1] in commands)


@pytest.mark.parametrize("name", recorded("ADD", "DEL", "CHECK", "STATUS", "GC"))
def test_stdin_equals_that_of_containerd_for_the_recorded_call(name, recording):
    stdin = recording(f"cni/{name}")["stdin"]
    plugin = {key: stdin[key] for key in ("type", "note", "capabilities")}
    conflist = Conflist(name=stdin["name"], cni_version=stdin["cniVersion"], plugins=(plugin,))
    known = {"aliases": ["not asked for"], **stdin.get("runtimeConfig", {})}
    extra = {key: value for key, value in stdin.items() if key.startswith("cni.dev/")}
    written = conflist.stdin_for(
        plugin, prev_result=stdin.get("prevResult"), capability_args=known, extra=extra
    )
    assert written.decode() == json.dumps(stdin, sort_keys=True, separators=(",", ":"))


def test_plugin_gets_only_arguments_of_its_capabilities():
    plugin = {"type": "a", "capabilities": {"bandwidth": True, "portMappings": False, "dns": True}}
    conflist = Conflist(name="n", cni_version="1.0.0", plugins=(plugin,))
    known = {"bandwidth": {}, "portMappings": [], "ips": []}
    written = json.loads(conflist.stdin_for(plugin, capability_args=known))
    assert written["runtimeConfig"] == {"bandwidth": {}}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "net.conflist"),
        ('{"name": "n", "cniVersion": "1.0.0", "plugins": []}', "plugins: wanted one"),
        ('{"name": "n", "cniVersion": "1.0.0", "plugins": [{}]}', "type"),
        ('{"name": "n", "cniVersion": "0.2.0", "plugins": [{"type": "a"}]}', "cniVersion: wanted one of"),
        ('{"name": "n", "plugins": [{"type": "a"}]}', "cniVersion"),
        ('{"name": "n", "cniVersion": "1.0.0", "plugins": [{"type": "a", "capabilities": 1}]}', "capab"),
    ],
)
def test_conflist_is_refused_when_a_field_is_wrong(tmp_path, text, says):
    path = tmp_path / "net.conflist"
    path.write_text(text)
    with pytest.raises(MalformedError, match=says):
        load_conflist(path)
