"""`k8s-rdma webhook`."""

from __future__ import annotations

from k8s_rdma.cli.process_options import CheckConfig, ConfigFile, PrintSchema, check_only
from k8s_rdma.cli.processes import load_without_extras, start_webhook


def webhook(
    config: ConfigFile = None, check_config: CheckConfig = False, print_schema: PrintSchema = False
) -> None:
    """Add what pods with the annotation need, as an admission webhook (:54007)."""
    if not (check_config or print_schema):
        start_webhook(config=config)
        return
    load_without_extras()
    from k8s_rdma.config.webhook import WebhookConfig
    from k8s_rdma.webhook.main import check

    check_only(WebhookConfig, config, check, print_schema=print_schema)
