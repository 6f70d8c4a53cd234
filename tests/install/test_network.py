"""The contents of our file, and when it is not there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from install.node_files import BRIDGE, FILE, OURS, PORTMAP, NodeFiles, conflist
from k8s_rdma.errors import K8sRdmaError, MalformedError
from k8s_rdma.install.network_mode import NetworkMode
from k8s_rdma.wire.conflist import plugin_section

if TYPE_CHECKING:
    from pathlib import Path


MESH = {"type": "mesh", "log_level": "info"}
CAPABILITY = {"io.kubernetes.cri.pod-annotations": True}


def test_ours_is_the_others_with_our_plugin_behind_and_the_others_stays_untouched(
    node: NodeFiles, program: Path
) -> None:
    before = (node.confs / "10-pods.conflist").read_bytes()
    outcome = node.installation(plugin='{"runDir": "/run/x", "timeoutMs": 1000}').install(program)
    assert outcome.problems == ()
    file, document = node.network()
    assert (file, document["name"], document["cniVersion"]) == (FILE, "pods", "1.0.0")
    ours = {"type": OURS, "capabilities": CAPABILITY, "runDir": "/run/x", "timeoutMs": 1000}
    assert document["plugins"] == [BRIDGE, PORTMAP, ours]
    assert (node.confs / "10-pods.conflist").read_bytes() == before
    assert (node.confs / FILE).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("name", ["10-pods.conf", "10-pods.json"])
def test_a_single_plugin_becomes_a_list(node: NodeFiles, program: Path, name: str) -> None:
    (node.confs / "10-pods.conflist").unlink()
    single = {"cniVersion": "0.3.1", "name": "one", **BRIDGE}
    (node.confs / name).write_text(json.dumps(single))
    node.installation().install(program)
    document = node.network()[1]
    assert (document["cniVersion"], document["name"]) == ("0.3.1", "one")
    assert document["plugins"] == [single, {"type": OURS, "capabilities": CAPABILITY}]


def test_values_are_handed_on_as_they_are_written(node: NodeFiles, program: Path) -> None:
    plugin = '{"type": "bridge", "y": 12345678901234567890123, "z": 1.0}'
    text = f'{{"cniVersion": "1.0.0", "name": "pods", "x": 1e400, "plugins": [{plugin}]}}'
    (node.confs / "10-pods.conflist").write_text(text)
    node.installation().install(program)
    written = (node.confs / FILE).read_text()
    assert all(each in written for each in ("1e400", "12345678901234567890123", "1.0"))


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({}, {"cniVersion": "1.0.0"}),
        ({"version": "0.4.0"}, {"cniVersion": "0.4.0"}),
        ({"version": "1.1.0"}, {"cniVersion": "1.1.0"}),
        (
            {"version": "1.0.0", "cniVersions": ["1.0.0", "1.1.0", "2.0.0"]},
            {"cniVersion": "1.0.0", "cniVersions": ["1.0.0", "1.1.0"]},
        ),
        (
            {"version": "2.0.0", "cniVersions": ["1.0.0", "1.1.0", "2.0.0"]},
            {"cniVersion": "1.1.0", "cniVersions": ["1.0.0", "1.1.0"]},
        ),
        ({"disableGC": True}, {"disableCheck": True, "disableGC": True}),
        ({"disableCheck": False}, {"disableCheck": False}),
    ],
)
def test_list_is_of_our_plugins_versions_and_without_check_unless_it_says(
    node: NodeFiles, program: Path, fields: dict[str, Any], kept: dict[str, Any]
) -> None:
    (node.confs / "10-pods.conflist").write_text(conflist(BRIDGE, **fields))
    node.installation().install(program)
    assert kept.items() <= node.network()[1].items()


def test_a_list_without_a_version_stays_without(node: NodeFiles, program: Path) -> None:
    (node.confs / "10-pods.conflist").write_text(json.dumps({"name": "pods", "plugins": [BRIDGE]}))
    node.installation().install(program)
    assert "cniVersion" not in node.network()[1]


UNFIT = {
    "cniVersion": conflist(BRIDGE, version="2.0.0"),
    "k8s-rdma-cni: has no plugin before it": conflist({"type": OURS}, PORTMAP),
    "plugins[1]: network configuration: interfaceName": conflist(BRIDGE, {"type": OURS, "interfaceName": 1}),
    "NetworkAttachmentDefinition": conflist({"type": "multus-shim"}),
}


@pytest.mark.parametrize("problem", UNFIT)
def test_ours_is_removed_if_it_cannot_be_chained(node: NodeFiles, program: Path, problem: str) -> None:
    installation = node.installation()
    installation.install(program)
    (node.confs / "10-pods.conflist").write_text(UNFIT[problem])
    [told] = installation.install(program).problems
    assert told.startswith(f"{node.confs}: 10-pods.conflist: ")
    assert problem in told
    assert not (node.confs / FILE).exists()


BY_HAND = {
    "behind": conflist(BRIDGE, {"type": OURS, "timeoutMs": 1000}, PORTMAP),
    "under its former name": conflist(BRIDGE, {"type": "rit-k8s-rdma-cni-linux-amd64"}),
    "with a delegate": conflist({"type": OURS, "delegate": BRIDGE}),
}


@pytest.mark.parametrize("text", BY_HAND.values(), ids=BY_HAND)
def test_network_chained_by_hand_is_left_alone_and_suffices(
    node: NodeFiles, program: Path, text: str
) -> None:
    installation = node.installation()
    installation.install(program)
    (node.confs / "10-pods.conflist").write_text(text)
    outcome = installation.install(program)
    assert (outcome.problems, outcome.by_hand, outcome.rival) == ((), True, "10-pods.conflist")
    assert installation.serves(outcome)
    assert not (node.confs / FILE).exists()
    assert (node.confs / "10-pods.conflist").read_text() == text
    (node.confs / "10-pods.conflist").write_text(conflist(BRIDGE))
    assert not installation.install(program).by_hand
    assert node.types() == ["bridge", OURS]


@pytest.mark.parametrize("network", [NetworkMode.CHAINED, NetworkMode.NONE])
def test_executable_stays_if_a_foreign_network_uses_it(
    node: NodeFiles, program: Path, network: NetworkMode
) -> None:
    installation = node.installation(network)
    (node.confs / "10-pods.conflist").write_text(BY_HAND["behind"])
    installation.install(program)
    with pytest.raises(K8sRdmaError, match=r"left: .*/k8s-rdma-cni, which 10-pods\.conflist calls"):
        installation.remove(0, print)
    assert node.types() == ["bridge", OURS, "portmap"]
    (node.confs / "10-pods.conflist").write_text(conflist(BRIDGE))
    installation.remove(0, print)
    assert not (node.bin / OURS).exists()


BY_OTHERS = {
    "a delegate of Multus'": {"type": "multus", "delegates": [{"plugins": [BRIDGE, {"type": OURS}]}]},
    "a delegate": {"type": "flannel", "delegate": {"type": "rit-k8s-rdma-cni-linux-amd64"}},
    "a delegate of one in a list": {"plugins": [{"type": "x", "delegate": {"delegate": {"type": OURS}}}]},
}


@pytest.mark.parametrize("network", NetworkMode)
@pytest.mark.parametrize("conf", BY_OTHERS.values(), ids=BY_OTHERS)
def test_executable_stays_if_another_plugin_calls_it(
    node: NodeFiles, program: Path, conf: dict[str, Any], network: NetworkMode
) -> None:
    node.installation(NetworkMode.NONE).install(program)
    file = node.confs / ("20-x.conflist" if "plugins" in conf else "20-x.conf")
    file.write_text(json.dumps({"cniVersion": "1.0.0", "name": "x", **conf}))
    with pytest.raises(K8sRdmaError, match=r"which 20-x\.conf.* calls"):
        node.installation(network).remove(0, print)
    assert (node.bin / OURS).exists()


def test_executable_is_removed_if_only_a_network_has_its_name(node: NodeFiles, program: Path) -> None:
    node.installation(NetworkMode.NONE).install(program)
    (node.confs / "20-x.conflist").write_text(conflist(BRIDGE, name=OURS, x=[OURS, 1, {"type": [OURS]}]))
    node.installation(NetworkMode.NONE).remove(0, print)
    assert not (node.bin / OURS).exists()


@pytest.mark.parametrize("aim", [".", "10-pods.conflist/x", "20-x.conflist", "absent"])
def test_broken_link_does_not_prevent_removal(node: NodeFiles, program: Path, aim: str) -> None:
    (node.confs / "20-x.conflist").symlink_to(aim)
    installation = node.installation()
    installation.install(program)
    installation.remove(0, print)
    assert not (node.bin / OURS).exists()
    assert node.types() == ["bridge", "portmap"]


@pytest.mark.parametrize("network", NetworkMode)
def test_executable_stays_if_the_target_of_a_link_is_unknown(
    node: NodeFiles, program: Path, network: NetworkMode
) -> None:
    """In a container that has the node's directory of networks mounted, and no other files of the node."""
    (node.confs / "20-x.conflist").symlink_to("/of-the-node/x.conflist")
    installation = node.installation(network)
    installation.install(program)
    told = r"20-x\.conflist: leads to /of-the-node/x\.conflist, which does not exist here"
    with pytest.raises(K8sRdmaError, match=told):
        installation.remove(0, print)
    assert (node.bin / OURS).exists()
    assert node.types() == ["bridge", "portmap"]


BROKEN = {
    "": "malformed",
    '{"cniVersion": "1.0.0", "na': "Unterminated string at character 25",
    conflist(): "plugins: there are none",
    conflist({"bridge": "cni0"}): "plugins[0]",
    conflist({"type": ""}): "plugins[0].type: empty",
    conflist(BRIDGE, {"type": "portmap", "capabilities": {"portMappings": "yes"}}): "plugins[1]",
    conflist(BRIDGE, name=""): "name: missing or empty",
}


@pytest.mark.parametrize("text", BROKEN, ids=list(BROKEN.values()))
def test_the_last_good_one_stays_while_the_other_is_broken(node: NodeFiles, program: Path, text: str) -> None:
    installation = node.installation()
    installation.install(program)
    good = (node.confs / FILE).read_bytes()
    (node.confs / "10-pods.conflist").write_text(text)
    outcome = installation.install(program)
    [told] = outcome.problems
    assert told.startswith(f"{node.confs}: 10-pods.conflist: ")
    if text:
        assert BROKEN[text] in told
    assert (node.confs / FILE).read_bytes() == good
    (node.confs / FILE).unlink()
    installation.install(program)
    assert not (node.confs / FILE).exists()


def test_ours_goes_with_the_other_and_comes_with_the_next(node: NodeFiles, program: Path) -> None:
    installation = node.installation()
    installation.install(program)
    (node.confs / "10-pods.conflist").unlink()
    [told] = installation.install(program).problems
    assert told.startswith(f"{node.confs}: no network of another plugin is there; install the cluster's (")
    assert not list(node.confs.iterdir())
    (node.confs / "20-more.conf").write_text('{"cniVersion": "0.3.1", "name": "more", "type": "ptp"}')
    assert installation.install(program).rival == "20-more.conf"
    assert node.types() == ["ptp", OURS]


def test_the_first_other_is_taken_as_runtimes_sort_them(node: NodeFiles, program: Path) -> None:
    (node.confs / "09-first.conf").write_text('{"name": "first", "type": "ptp"}')
    (node.confs / "09-Zero.conflist").mkdir()
    (node.confs / "05-no-network.conflist.bak").write_text("{}")
    (node.confs / "05-kubeconfig").write_text("apiVersion: v1")
    assert node.installation().install(program).rival == "09-first.conf"


def test_network_that_sorts_before_ours_is_reported(node: NodeFiles, program: Path) -> None:
    (node.confs / "00-first.conf").write_text('{"name": "first", "type": "ptp"}')
    [told] = node.installation().install(program).problems
    assert told.startswith(f"{node.confs}: 00-first.conf: comes before {FILE}")
    assert node.types() == ["ptp"]


def test_plugins_that_others_chained_into_ours_stay_until_they_remove_them(
    node: NodeFiles, program: Path
) -> None:
    installation = node.installation()
    installation.install(program)
    document = node.network()[1]
    document["plugins"].append(MESH)
    (node.confs / FILE).write_text(json.dumps(document))
    assert not installation.install(program).rewritten  # else both would write it in turns
    (node.confs / "10-pods.conflist").write_text(conflist(BRIDGE))
    installation.install(program)
    assert node.types() == ["bridge", OURS, "mesh"]
    document = node.network()[1]
    document["plugins"].remove(MESH)
    (node.confs / FILE).write_text(json.dumps(document))
    installation.install(program)
    assert node.types() == ["bridge", OURS]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"plugins": 1}', '{"plugins": [{"type": "x"}]}'])
def test_ours_is_made_anew_if_it_was_damaged(node: NodeFiles, program: Path, text: str) -> None:
    installation = node.installation()
    installation.install(program)
    good = (node.confs / FILE).read_bytes()
    (node.confs / FILE).write_text(text)
    installation.install(program)
    assert (node.confs / FILE).read_bytes() == good


def test_ours_under_a_former_name_is_neither_chained_to_nor_left(node: NodeFiles, program: Path) -> None:
    node.installation(file="01-former.conflist").install(program)
    node.installation().install(program)
    assert sorted(path.name for path in node.confs.iterdir()) == [FILE, "10-pods.conflist"]
    assert node.types() == ["bridge", "portmap", OURS]


def test_others_may_be_a_link(node: NodeFiles, program: Path, tmp_path: Path) -> None:
    (node.confs / "10-pods.conflist").rename(tmp_path / "real")
    (node.confs / "10-pods.conflist").symlink_to(tmp_path / "real")
    installation = node.installation()
    installation.install(program)
    assert node.types() == ["bridge", "portmap", OURS]
    (tmp_path / "real").unlink()
    [told] = installation.install(program).problems
    assert "a link that leads nowhere" in told
    assert (node.confs / FILE).exists()


def test_alone_ours_is_the_only_plugin(node: NodeFiles, program: Path) -> None:
    delegate = json.dumps({"delegate": BRIDGE})
    node.installation(NetworkMode.ALONE, plugin=delegate).install(program)
    file, document = node.network()
    assert (file, document["name"], document["cniVersion"]) == (FILE, "k8s-rdma", "1.0.0")
    assert document["plugins"] == [{"type": OURS, "capabilities": CAPABILITY, "delegate": BRIDGE}]


def test_network_that_sorts_before_ours_alone_is_reported(node: NodeFiles, program: Path) -> None:
    (node.confs / "00-first.conf").write_text('{"name": "first", "type": "ptp"}')
    [told] = node.installation(NetworkMode.ALONE).install(program).problems
    assert told.startswith(f"{node.confs}: 00-first.conf: comes before {FILE}")


def test_only_the_executable_leaves_networks_alone(node: NodeFiles, program: Path) -> None:
    node.installation(NetworkMode.NONE).install(program)
    assert (node.bin / OURS).exists()
    assert [path.name for path in node.confs.iterdir()] == ["10-pods.conflist"]


def test_only_the_executable_is_removed_with_the_network_that_names_it(
    node: NodeFiles, program: Path
) -> None:
    node.installation().install(program)
    node.installation(NetworkMode.NONE).remove(0, print)
    assert not (node.bin / OURS).exists()
    assert node.types() == ["bridge", "portmap"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "--plugin: Expected `object`"),
        ('{"ipam": {"type": "x"}', "--plugin: no valid JSON: ends too early"),
        (
            '{"vlan": 1, l2enable: true}',
            "--plugin: no valid JSON: Expecting property name enclosed in double",
        ),
        ('{"runDi": "/x"}', "--plugin: network configuration: runDi: unknown key; did you mean runDir?"),
        ('{"type": "x"}', "--plugin: type: is not for you to set"),
        ('{"delegate": {"type": "bridge"}}', "--plugin: delegate: is for --network alone"),
        ('{"vlan": 9999}', "vlan: 9999 is not in 0..4094"),
        ('{"capabilities": {"x": 1}}', "--plugin: capabilities: Expected `bool`"),
    ],
)
def test_section_that_our_plugin_would_refuse_is_refused_first(text: str, said: str) -> None:
    with pytest.raises(MalformedError, match=said.replace("?", r"\?").replace(".", r"\.")):
        plugin_section(text.encode(), chained=True)


LOOPBACK = json.dumps({"cniVersion": "0.3.1", "name": "lo", "type": "loopback"})
"""The file that packages of runtimes bring; see `contrib/cni` of CRI-O."""


@pytest.mark.parametrize("name", ["99-loopback.conf", "200-loopback.conf"])
def test_loopback_alone_is_no_network_to_chain_behind(node: NodeFiles, program: Path, name: str) -> None:
    (node.confs / "10-pods.conflist").unlink()
    (node.confs / name).write_text(LOOPBACK)
    outcome = node.installation().install(program)
    [told] = outcome.problems
    assert "no network of another plugin is there" in told
    assert not (node.confs / FILE).exists()


def test_network_that_comes_later_is_chained_though_the_loopback_sorts_before_it(
    node: NodeFiles, program: Path
) -> None:
    (node.confs / "05-loopback.conf").write_text(LOOPBACK)
    assert node.installation().install(program).problems == ()
    file, document = node.network()
    assert (file, document["name"]) == (FILE, "pods")


def test_loopback_before_our_file_is_named_because_runtimes_would_read_it(
    node: NodeFiles, program: Path
) -> None:
    (node.confs / "00-a-loopback.conf").write_text(LOOPBACK)
    [told] = node.installation().install(program).problems
    assert "00-a-loopback.conf: comes before 00-k8s-rdma.conflist" in told


def test_list_in_a_file_for_one_plugin_is_named(node: NodeFiles, program: Path) -> None:
    (node.confs / "10-pods.conflist").rename(node.confs / "10-pods.conf")
    [told] = node.installation().install(program).problems
    assert "10-pods.conf: plugins: is a list, which runtimes read from .conflist alone" in told


@pytest.mark.parametrize(
    "key", ["spoofchk", "trust", "link_state", "min_tx_rate", "vlanQoS", "resourceName", "pkey"]
)
def test_key_of_sriov_cni_is_named_with_its_page(key: str) -> None:
    with pytest.raises(MalformedError, match=rf"--plugin: {key}: of sriov-cni; .*docs/migration-sriov\.md"):
        plugin_section(json.dumps({key: "on"}).encode(), chained=True)
