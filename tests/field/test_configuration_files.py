"""Configuration files as people write, copy and generate them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from k8s_rdma.config.extender import ExtenderConfig
from k8s_rdma.config.files import load_config, parse_config
from k8s_rdma.config.init import InitConfig
from k8s_rdma.config.manifests import documents
from k8s_rdma.errors import MalformedError

if TYPE_CHECKING:
    from pathlib import Path


def refusal(text: str) -> str:
    with pytest.raises(MalformedError) as refused:
        parse_config(ExtenderConfig, text, "extender.yaml")
    return str(refused.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        # https://github.com/yaml/pyyaml/issues/395: 12:30 is 750, counted by sixties
        ("port: 12:30\n", "line 1: port: is text; wanted a whole number from 0 to 65535"),
        # https://github.com/Azure/secrets-store-csi-driver-provider-azure/issues/1544: after the value
        (
            "port: 8888\u200b\n",
            "line 1: port: is text; wanted a whole number from 0 to 65535, without the character U+200B",
        ),
        # https://github.com/astronomer/docs/pull/261: in the place of a space, copied from a page
        ("port:\u00a08888\n", "is text; wanted a mapping of settings, without the character U+00A0"),
        ("leaseName: k8s-rdma\ufeff\n", "without the character U+FEFF"),
        ("port: 1\n---\nport: 2\n", "line 2, column 1: expected a single document"),
    ],
    ids=["by sixties", "zero width", "no-break space", "in a name", "two documents"],
)
def test_value_that_is_not_as_it_looks_is_refused_by_its_field(text: str, why: str):
    assert why in refusal(text)


def test_pci_address_without_quotes_is_an_address():
    """https://github.com/linux-system-roles/network/issues/365: numbers with colons, read by sixties."""
    text = "hardware:\n  pfs:\n  - pcis: [41:00.0, 03:00.1]\n"
    [rule] = parse_config(InitConfig, text, "init.yaml").hardware.pfs
    assert rule.pcis == ("41:00.0", "03:00.1")


def test_time_in_a_manifest_is_text_with_a_fraction_too():
    [pod] = documents("kind: Pod\nspec: {containers: [{args: [1:30, 1:30.5, 22:22, 1.5, 7]}]}\n")
    assert pod["spec"]["containers"][0]["args"] == ["1:30", "1:30.5", "22:22", 1.5, 7]


@pytest.mark.parametrize("head", ["\ufeff", "\r\n", "---\r\n"], ids=["mark", "empty line", "start"])
def test_file_of_windows_is_read(head: str):
    assert parse_config(ExtenderConfig, f"{head}port: 8889\r\nsource: http\r\n", "x").port == 8889


def test_file_of_a_configmap_is_read_by_its_links(tmp_path: Path):
    """As kubelet's atomic writer lays volumes out (pkg/volume/util/atomic_writer.go)."""
    (tmp_path / "..1").mkdir()
    (tmp_path / "..1" / "extender.yaml").write_text("port: 8889\n")
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "extender.yaml").symlink_to("..data/extender.yaml")
    assert load_config(ExtenderConfig, str(tmp_path / "extender.yaml"), {}).port == 8889
