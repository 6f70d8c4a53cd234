"""`k8s-rdma extender`."""

from __future__ import annotations

from k8s_rdma.cli.process_options import CheckConfig, ConfigFile, PrintSchema, check_only
from k8s_rdma.cli.processes import load_without_extras, start_extender


def extender(
    config: ConfigFile = None,
    check_config: CheckConfig = False,
    print_schema: PrintSchema = False,
) -> None:
    """Serve kube-scheduler: filter and score nodes, and bind pods (:8888)."""
    if not (check_config or print_schema):
        start_extender(config=config)
        return
    load_without_extras()
    from k8s_rdma.config.extender import ExtenderConfig
    from k8s_rdma.extender.main import check

    check_only(ExtenderConfig, config, check, print_schema=print_schema)
