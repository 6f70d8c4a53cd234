"""`k8s-rdma claim`, as a user runs it: annotations and manifests in, templates out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import warm_program
from cli.asking import ENVIRONMENT
from k8s_rdma.cli.yaml_output import _Dumper
from k8s_rdma.config.manifests import ManifestLoader

if TYPE_CHECKING:
    import subprocess

WORKLOADS = Path(__file__).parents[2] / "examples" / "workloads"
ANNOTATION = '[{"min_tx_rate": 5000}]'
POD = f"""\
apiVersion: v1
kind: Pod
metadata:
  name: train
  namespace: team
  annotations:
    k8s-rdma.io/interfaces: '{ANNOTATION}'
spec:
  schedulerName: rdma-scheduler
  containers:
  - {{name: main, image: registry.invalid/c:1, args: [12:30:45, 2026-01-01, 1e3, "no"]}}
"""


def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return warm_program.run(["claim", *arguments], ENVIRONMENT, stdin=stdin)


def printed(*arguments: str, stdin: str = "") -> list[dict[str, Any]]:
    ran = run(*arguments, stdin=stdin)
    assert (ran.returncode, ran.stderr) == (0, "")
    return list(yaml.safe_load_all(ran.stdout))


def test_annotation_is_an_option_a_file_or_standard_input(tmp_path: Path):
    [template] = printed("--annotation", ANNOTATION)
    assert template["metadata"] == {"name": "rdma"}
    file = tmp_path / "annotation.json"
    file.write_text(ANNOTATION)
    assert [template] == printed(str(file)) == printed(stdin=ANNOTATION) == printed("-", stdin=ANNOTATION)


def test_names_are_chosen():
    options = ("--name", "storage", "--namespace", "team", "--class", "rdma-fast", "--policy", "same-pf")
    [template] = printed("--annotation", '[{"count": 2}]', *options)
    assert template["metadata"] == {"name": "storage", "namespace": "team"}
    found = template["spec"]["spec"]["devices"]
    assert found["requests"][0]["exactly"] == {"deviceClassName": "rdma-fast"}
    assert found["constraints"] == [{"matchAttribute": "rdma.k8s-rdma.io/pf"}]


def test_manifest_has_a_template_named_after_it():
    [template] = printed(stdin=POD)
    assert template["metadata"] == {"name": "train-rdma", "namespace": "team"}


def test_pod_uses_its_template_and_is_else_as_it_was():
    template, pod = printed("--pod", stdin=POD)
    assert pod["metadata"] == {"name": "train", "namespace": "team"}
    [claim] = pod["spec"]["resourceClaims"]
    assert claim["resourceClaimTemplateName"] == template["metadata"]["name"]
    [container] = pod["spec"]["containers"]
    assert container["resources"] == {"claims": [{"name": claim["name"]}]}
    assert container["args"] == ["12:30:45", "2026-01-01", "1e3", "no"]
    assert "schedulerName" not in pod["spec"]


@pytest.mark.parametrize("name", ["deployment", "job", "indexed-job"])
def test_workloads_pods_use_its_template(name: str):
    ran = run("--pod", str(WORKLOADS / f"{name}.yaml"))
    assert ran.returncode == 0
    template, *others = yaml.safe_load_all(ran.stdout)
    before = [each for each in yaml.safe_load_all((WORKLOADS / f"{name}.yaml").read_text()) if each]
    assert [each["kind"] for each in others] == [each["kind"] for each in before]
    [pod] = [each["spec"]["template"] for each in others if "template" in each["spec"]]
    assert "rdma_interfaces_required" not in pod["metadata"].get("annotations", {})
    [claim] = pod["spec"]["resourceClaims"]
    assert claim["resourceClaimTemplateName"] == template["metadata"]["name"]


@pytest.mark.parametrize(
    ("arguments", "stdin", "message"),
    [
        (
            ("--annotation", '[{"vlan": 4095}]'),
            "",
            "rdma_interfaces_required[0].vlan: 4095 is no whole number",
        ),
        (
            ("--annotation", '[{"near": "gpu"}]'),
            "",
            "interface 0: near: a claim does not know the pod's GPUs",
        ),
        (("--annotation", "[{}]", "--policy", "numa"), "", "k8s-rdma.io/policy: numa is no policy"),
        (("--annotation", "[{}]", "--pod"), "", "--annotation and --pod do not go together"),
        (("--annotation", "[{}]", "x"), "", "--annotation and FILE do not go together"),
        (("nowhere.yaml",), "", "nowhere.yaml: No such file or directory"),
        ((), "kind: Pod\nmetadata: [", "manifest: line 2, column 12"),
        ((), "kind: Pod\nmetadata: [1]\nspec: {}\n", "manifest: Pod: Expected `object | null`, got `array`"),
        (("--pod",), POD.replace("name: train", "name: 7"), "got `int` - at `metadata.name`"),
        (("--pod",), POD.replace("- {", "- 3\n  - {"), "got `int` - at `spec.containers[0]`"),
        (
            ("--pod",),
            "kind: Job\nspec: {template: {metadata: {annotations: 3}, spec: {}}}\n",
            "got `int` - at `spec.template.metadata.annotations`",
        ),
        ((), "just text", "manifest: wanted Kubernetes objects, or an annotation's list"),
        ((), "kind: Service\n", "no interfaces: nothing has an annotation rdma_interfaces_required"),
        (("--pod",), POD.replace("schedulerName: rdma-scheduler", "hostNetwork: true"), "spec.hostNetwork: "),
        ((), POD.replace("schedulerName: rdma-scheduler", "hostNetwork: true"), "spec.hostNetwork: "),
        (("--pod",), POD.replace("schedulerName: rdma-scheduler", "nodeName: w1"), "spec.nodeName: "),
        ((), POD.replace("schedulerName: rdma-scheduler", "nodeName: w1"), "spec.nodeName: "),
        (
            (),
            POD.replace(f"'{ANNOTATION}'", "[1]"),
            "metadata.annotations: k8s-rdma.io/interfaces is no text",
        ),
    ],
)
def test_unconvertible_request_is_refused_in_a_line(arguments: tuple[str, ...], stdin: str, message: str):
    ran = run(*arguments, stdin=stdin)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("k8s-rdma: ")
    assert message in ran.stderr
    assert ran.stderr.count("\n") == 1


def test_differences_are_on_standard_error():
    ran = run("--annotation", '[{}, {"min_tx_rate": 1}]')
    assert ran.returncode == 0
    assert ran.stderr.startswith("k8s-rdma: warning: interfaces get their names in the order of the requests")
    other = POD.replace("rdma-scheduler", "volcano").replace(
        "  annotations:", "  annotations:\n    k8s-rdma.io/nccl: required"
    )
    told = run("--pod", stdin=other).stderr
    assert "schedulerName volcano: all pods with claims of the same PFs need the same scheduler" in told
    assert "k8s-rdma.io/nccl is not read of pods with claims" in told


@given(
    st.text() | st.sampled_from(["y", "n", "on", "1e3", "0x1", "0o7", "12:30", "2026-01-01", "~", ".5", "+1"])
)
def test_text_stays_text(text: str):
    document = {"key": text, text: [text]}
    written = yaml.dump(document, Dumper=_Dumper, allow_unicode=True)
    loader = ManifestLoader(written)
    assert loader.get_single_data() == yaml.safe_load(written) == document
    if text in ("y", "n", "on", "1e3", "0x1", "0o7", "~", ".5", "+1"):
        assert f'"{text}"' in written
