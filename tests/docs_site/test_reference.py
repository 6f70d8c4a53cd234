"""Pages that are made of the code have all of it."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
import yaml

from docs_site.reference.commands import commands, commands_page
from docs_site.reference.configuration import PATH, PROCESSES, configuration_page, meaning, settings
from docs_site.reference.errors import errors_page
from docs_site.reference.metrics import metrics_page
from docs_site.reference.objects import objects_page
from docs_site.reference.pages import PAGES
from docs_site.reference.rest import TOKENS_DEMANDED, rest_page
from docs_site.reference.tables import moved, rows_by_name, section, table
from docs_site.reference.written import TABLES, written
from k8s_rdma.config.extender import ExtenderConfig
from k8s_rdma.deviceplugin.main import INDEX
from k8s_rdma.errors import Reason
from k8s_rdma.extender.main import OPEN_PATHS
from k8s_rdma.linux.drivers import DRIVERS
from k8s_rdma.server.app import openapi_document
from k8s_rdma.wire.views import CLUSTER_PATH, EXPLAIN_PATH, HOLDERS_PATH, NAMESPACE_PATH

ROOT = Path(__file__).resolve().parents[2]


def test_every_command_and_option_is_documented():
    page = commands_page()
    for name, command in commands():
        [_, told] = page.split(f"\n## {name}\n")
        told = told.partition("\n## ")[0]
        for parameter in command.params:
            assert parameter.help, f"{name} {parameter.name}: has no help"
            assert " ".join(parameter.help.split()) in told
    assert {"k8s-rdma agent adopt", "k8s-rdma explain pod"} < {name for name, _ in commands()}


@pytest.mark.parametrize("process", PROCESSES, ids=lambda process: process.command)
def test_every_key_of_a_process_is_documented_with_its_meaning(process):
    told = section(configuration_page(ROOT), f"k8s-rdma {process.command}")
    rows = dict(rows_by_name(told))
    assert set(rows) >= {field.encode_name for field in msgspec.structs.fields(process.model)}
    assert all(cells[-1] for cells in rows.values()), rows


def test_keys_of_objects_are_documented_by_their_path():
    [extender] = [process for process in PROCESSES if process.command == "extender"]
    found = {each.key: each for each in settings(extender.model)}
    assert found["limits[].namespace"].default == "needed"
    assert found["nodeTimeoutS"].type == "number above 0"
    assert (found["nodeTimeoutS"].default, found["leaseName"].default) == ("`1.5`", "`k8s-rdma-extender`")
    assert found["source"].type == "`crd`, `http`"


def test_undocumented_key_is_an_error():
    with pytest.raises(KeyError, match="unheardOf"):
        meaning({"port": "TCP"}, "unheardOf")
    assert meaning({"tls": "files"}, "tls.caFile") == "see `tls`"


def test_every_path_and_property_of_the_rest_api_is_documented():
    page, document = rest_page(), openapi_document(TOKENS_DEMANDED)
    shown = re.findall(r"^## (?:GET|POST) (\S+)$", page, re.MULTILINE)
    assert sorted(shown) == sorted(document["paths"])
    told = dict(rows_by_name(page))
    schemas = document["components"]["schemas"].values()
    assert {name for schema in schemas for name in schema.get("properties", ())} <= told.keys()


@pytest.mark.parametrize("name", TABLES)
def test_table_of_a_page_matches_the_code(name: str):
    path, text = written(name)
    assert f"<!-- made: {name} -->\n\n| " in text
    assert path.read_text() == text, f"run `make tables`: the code has another table {name} in {path.name}"


def test_page_of_drivers_says_which_rates_each_takes():
    page = (ROOT / "docs/drivers.md").read_text()
    rows = dict(rows_by_name(section(page, "The drivers")))
    empty = [name for name in DRIVERS if not all(rows.get(name, ("",) * 4)[2:4])]
    assert not empty, f"write in docs/drivers.md, The drivers, the minimum and maximum of {', '.join(empty)}"
    without = next(line for line in page.splitlines() if "and no row" in line)
    named = [name for name in DRIVERS if f"`{name}`" in without]
    assert not named, f"docs/drivers.md says that {', '.join(named)} has no row"


def test_http_reference_has_every_path_of_extender_and_device_plugin():
    page = (ROOT / "docs" / "http-api.md").read_text()
    config = ExtenderConfig()
    verbs = {config.filter_path, config.prioritize_path, config.preempt_path, config.bind_path}
    views = {"/metrics", CLUSTER_PATH, EXPLAIN_PATH, HOLDERS_PATH, NAMESPACE_PATH, *OPEN_PATHS}
    named = set(re.findall(r"`(?:GET|POST) (/[^?`]*)", section(page, "Extender")))
    assert named == verbs | views | {"/"}
    named = {name for name, _ in rows_by_name(section(page, "Device plugin")) if name.startswith("/")}
    assert named == set(re.findall(r"^GET (\S+)", INDEX, re.MULTILINE)) | {"/"}


def test_every_reason_is_documented():
    told = [name for name, _ in rows_by_name(errors_page())]
    assert sorted(told) == sorted(reason.value for reason in Reason)


@pytest.mark.parametrize(
    ("process", "page", "prefix", "many"),
    [
        ("Node", "agent", "", 20),
        ("Extender", "extender-troubleshooting", "k8s_rdma_extender_", 25),
        ("Device plugin", "device-plugin-reference", "", 12),
        ("Webhook", "injection", "", 1),
    ],
)
def test_every_metric_is_documented_also_by_hand(process: str, page: str, prefix: str, many: int):
    by_hand = section((ROOT / "docs" / f"{page}.md").read_text(), "Metrics")
    names = (name.partition("{")[0] for name, _ in rows_by_name(by_hand))
    told = {f"{prefix}{name}" for name in names if not name.startswith("_") and name != f"{prefix}..."}
    exposed = {name for name, _ in rows_by_name(section(metrics_page(), process))}
    missing, gone = sorted(exposed - told), sorted(told - exposed)
    assert not missing, f"write in docs/{page}.md, Metrics, the meaning of {', '.join(missing)}"
    assert not gone, f"docs/{page}.md, Metrics, has {', '.join(gone)}, which the process does not expose"
    assert len(told) > many


def test_every_column_of_an_object_is_documented():
    [version] = yaml.safe_load((ROOT / "deploy" / "crds" / "rdmanodes.yaml").read_text())["spec"]["versions"]
    page = objects_page(ROOT)
    assert not [
        each["name"] for each in version["additionalPrinterColumns"] if f"| {each['name']} |" not in page
    ]
    assert "| `status.allocations[].interfaces[].minMbps` | integer |" in page


def test_pages_are_no_files_of_the_repository():
    assert not [page.path for page in PAGES if (ROOT / page.path).exists()]


def test_links_of_a_text_keep_their_targets():
    text = "[a](#x) [b](drivers.md#y) [c](../examples/README.md) [d](https://example.org/e)"
    assert moved(text, source="docs/init.md", to=PATH) == (
        "[a](../init.md#x) [b](../drivers.md#y) [c](../../examples/README.md) [d](https://example.org/e)"
    )


def test_cell_of_a_table_may_have_a_pipe():
    written = table(("key", "meaning"), [["`a`", "x|y\nz"]])
    assert written.splitlines()[2] == "| `a` | x\\|y z |"
    assert dict(rows_by_name(written)) == {"a": ["`a`", "x\\|y z"]}
