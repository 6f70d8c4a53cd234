"""`k8s-rdma web`: the process that serves the pages; and `kubectl rdma web`, which opens them."""

from __future__ import annotations

import typer

from k8s_rdma.cli.bundles import with_bundles
from k8s_rdma.cli.options import ApiServer, ChartNamespace
from k8s_rdma.cli.process_options import CheckConfig, ConfigFile, PrintSchema, check_only
from k8s_rdma.cli.processes import load_without_extras, start_web


def web(
    config: ConfigFile = None, check_config: CheckConfig = False, print_schema: PrintSchema = False
) -> None:
    """Show the cluster as pages for people, read-only (:54008)."""
    if not (check_config or print_schema):
        start_web(config=config)
        return
    load_without_extras()
    from k8s_rdma.config.web import WebConfig
    from k8s_rdma.web.main import check

    check_only(WebConfig, config, check, print_schema=print_schema)


@with_bundles
def forward_web(*, chart: ChartNamespace, kubeconfig: ApiServer) -> None:
    """Show the cluster as pages: forward the port of the chart's `k8s-rdma-web` here, until Ctrl-C."""
    import shutil
    import signal
    import subprocess

    from k8s_rdma.config.addresses import WEB_PORT
    from k8s_rdma.errors import K8sRdmaError

    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise K8sRdmaError("there is no kubectl on PATH")
    command = [kubectl, "--namespace", chart.namespace, *kubeconfig.arguments(), "port-forward"]
    command += ["deployment/k8s-rdma-web", str(WEB_PORT)]
    typer.echo(f"Open http://127.0.0.1:{WEB_PORT}; Ctrl-C ends it.")
    try:
        ended = subprocess.run(command, check=False)
    except KeyboardInterrupt as interrupt:  # kubectl has it, too
        raise typer.Exit(128 + signal.SIGINT) from interrupt
    msg = f"kubectl port-forward ended with status {ended.returncode}"
    advice = "set viewers.enabled and web.enabled in the chart, and have the right to pods/portforward"
    raise K8sRdmaError(msg, details=f"{advice} (docs/web.md)")
