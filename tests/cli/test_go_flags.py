from __future__ import annotations

import pytest

from k8s_rdma.cli.go_flags import with_two_dashes


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("", ""),
        ("-master eth1 -resource-name a/b", "--master eth1 --resource-name a/b"),
        ("--master=eth1 -resource-name=a/b", "--master=eth1 --resource-name=a/b"),
        ("-master -v", "--master -v"),
        ("-v 4", "--verbosity=4"),
        ("-v=4", "--verbosity=4"),
        ("--v=4 -log-level debug", "--verbosity=4 --log-level debug"),
        ("-v", "--version"),
        ("-v -master eth1", "--version --master eth1"),
        ("-v=true", "--version"),
        ("-v=false", ""),
        ("-version", "--version"),
        ("-use-cdi", "--use-cdi"),
        ("-use-cdi=true --use-cdi=1 -use-cdi=F", "--use-cdi --use-cdi"),
        ("-use-cdi=perhaps", "-use-cdi=perhaps"),
        ("-config-file x.json", "--config-file x.json"),
        ("-logtostderr=true -stderrthreshold WARNING -vmodule=a=1 -log_dir /x", ""),
        ("-alsologtostderr -master eth1", "--master eth1"),
        ("--config x.yaml --check-config", "--config x.yaml --check-config"),
        ("-unknown x -h", "-unknown x -h"),
        ("-master eth1 -- -v 4", "--master eth1 -- -v 4"),
        ("-master", "--master"),
        ("-log_dir", ""),
    ],
)
def test_command_line_of_go_is_rewritten(given: str, meant: str) -> None:
    assert with_two_dashes(given.split()) == meant.split()
