"""Kubeconfigs of other clients' bug reports, which kubectl takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kube.asking import ask, serving, write

if TYPE_CHECKING:
    from pathlib import Path

CASES = {
    # https://github.com/kubernetes-client/python/issues/518: a user without credentials, or without an entry
    "user without entry": "contexts: [{name: vm, context: {cluster: vm, user: admin}}]\n"
    "users: [{name: admin}]",
    "user without credentials": "contexts: [{name: vm, context: {cluster: vm, user: admin}}]\n"
    "users: [{name: admin, user: {}}]",
    # https://github.com/kubernetes-client/python/issues/236: no key `users` at all
    "no users": "contexts: [{name: vm, context: {cluster: vm, user: ''}}]",
    # https://github.com/ansible-collections/kubernetes.core/issues/189: PyYAML refuses an anchor's second use
    "anchor twice": "contexts: [{name: &a vm, context: {cluster: *a}}]\nx: &a y\npreferences: {}",
    # https://github.com/kubernetes-client/java/issues/3241: extensions of Teleport's files
    "extensions": "contexts:\n- name: vm\n  context:\n    cluster: vm\n    extensions:\n"
    "    - {name: teleport.kube.name, extension: sandbox}",
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("slash", ["", "/"])  # https://github.com/kubernetes-client/python/issues/388
def test_kubeconfig_of_a_report_is_taken(tmp_path: Path, case: str, slash: str):
    with serving() as asked:
        clusters = f"clusters: [{{name: vm, cluster: {{server: '{asked.url}{slash}'}}}}]\n"
        ask(write(tmp_path / "k", f"{clusters}current-context: vm\n{CASES[case]}\n"))
    assert asked.by == [None]
