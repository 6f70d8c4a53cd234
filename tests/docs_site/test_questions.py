"""Words that people search for lead to a page: the site ranks headings and the index above other text."""

from __future__ import annotations

import re

import pytest

from documents import ROOT

SEARCHED = (
    *("ubuntu", "debian", "fedora", "rhel", "centos", "wsl", "docker", "podman", "kind", "minikube"),
    *("proxmox", "virtual machine", "vm", "arm64", "macos", "windows"),
    *("connectx", "bluefield", "e810", "infiniband", "gpudirect", "nccl", "dpdk"),
    *("openshift", "eks", "gke", "aks", "k3s", "rke2", "kubeadm", "talos"),
    *("cilium", "calico", "flannel", "multus", "kueue", "volcano", "slurm", "dranet"),
    *("pytorch", "mpi", "ray", "argo", "latency", "production", "prometheus", "grafana", "helm", "security"),
    *("offline", "air-gapped", "upgrade", "rollback", "downgrade", "uninstall"),
    *("faq", "glossary", "limits", "quotas", "preemption"),
)
"""Systems, products and tasks, as people type them."""

PAGES = sorted((ROOT / "docs").glob("*.md"))
_FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def headings() -> str:
    """Every heading of every page, and the text of the index."""
    texts = [_FENCED.sub("", page.read_text()) for page in PAGES]
    found = [heading for text in texts for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)]
    return "\n".join([*found, (ROOT / "docs" / "index.md").read_text()])


HEADINGS = headings()


def leads(word: str) -> bool:
    """Report whether a heading or the index has the word as a whole."""
    return bool(re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", HEADINGS, re.IGNORECASE))


@pytest.mark.parametrize("word", SEARCHED)
def test_word_leads_to_a_page(word: str):
    assert leads(word)


def test_part_of_a_word_and_a_word_of_no_page_lead_nowhere():
    assert not leads("uest")
    assert not leads("solaris")


def test_terms_of_the_glossary_have_anchors_of_their_own():
    glossary = (ROOT / "docs" / "glossary.md").read_text()
    terms = re.findall(r"^- (.*)$", glossary, re.MULTILINE)
    anchors = re.findall(r'^- <a id="([a-z0-9-]+)"></a>\*\*', glossary, re.MULTILINE)
    assert len(anchors) == len(terms) > 30
    assert len(set(anchors)) == len(anchors)
