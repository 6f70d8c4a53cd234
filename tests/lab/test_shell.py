"""`python -m lab shell`: the commands of its greeting work, and mistyped ones are named."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from lab.layers import REPOSITORY

if TYPE_CHECKING:
    from lab.cache import Cache

SHELL_S = 600
TYPED = """
lab-pod add a '[{"max_tx_rate": 50}]'; echo "added: $?"
ip -n a -br addr show eth0
ip link show eth0 | grep -c 'max_tx_rate 50Mbps'
lab-pod add b '[{"max_rate": 50}]'; echo "refused: $?"
ip netns list | grep -c b
lab-cable eth0 off; echo "pulled: $?"
lab-cable eth0 on
lab-pod del a; echo "deleted: $?"
lab-pod del a; echo "again: $?"
lab-pod; echo "usage: $?"
for _ in {1..50}; do # the server hears of it a moment later
  wget -qO- http://127.0.0.1:54005/v1/node | grep -o '"allocations":[[]]' && break
  sleep 0.2
done
exit 7
"""


@pytest.mark.timeout(SHELL_S + 60)
def test_shell_is_on_a_node_that_gives_pods_their_interfaces(lab_cache: Cache) -> None:
    ended = subprocess.run(
        (sys.executable, "-m", "lab", "--cache", str(lab_cache.root), "shell"),
        input=TYPED,
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=SHELL_S,
        check=False,
    )
    said = ended.stdout
    assert ended.returncode == 7, said + ended.stderr
    for line in ("added: 0", "refused: 1", "pulled: 0", "deleted: 0", "again: 1", "usage: 2"):
        assert line in said, said
    assert "10.56.0." in said
    assert "unknown key; did you mean max_tx_rate?" in said
    assert "lab-pod: no pod a" in said
    assert "usage: lab-pod add NAME ANNOTATION | lab-pod del NAME" in said
    assert '"allocations":[]' in said, said
