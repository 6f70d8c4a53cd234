"""Completion as shells and kubectl ask for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(sys.executable).parent


def completed(*words: str) -> list[str]:
    ran = subprocess.run(
        [str(PROGRAMS / "kubectl_complete-rdma"), *words], capture_output=True, text=True, check=False
    )
    return [line for line in ran.stdout.splitlines() if line]  # as kubectl has it


def test_kubectl_gets_words_with_descriptions_and_a_directive():
    assert completed("who") == ["who\tShow which pods hold interfaces, what they...", ":4"]


def test_kubectl_gets_values_of_an_option():
    assert completed("top", "--sort", "p") == ["pods", "problems", ":4"]


def test_kubectl_gets_no_words_for_a_free_argument():
    assert completed("who", "a 'b") == [":4"]


def test_bash_completes_by_the_script():
    script = f"""
        PATH={PROGRAMS}:$PATH
        source <(k8s-rdma completion bash)
        COMP_WORDS=(k8s-rdma ex) COMP_CWORD=1
        _k8s_rdma_completion k8s-rdma
        echo "${{COMPREPLY[@]}}"
    """
    ran = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["extender", "explain"]


@pytest.mark.parametrize(
    ("shell", "begins"), [("zsh", "#compdef k8s-rdma"), ("fish", "complete --command k8s-rdma")]
)
def test_script_is_of_the_shell(shell: str, begins: str):
    command = [str(PROGRAMS / "k8s-rdma"), "completion", shell]
    script = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert script.startswith(begins)
