"""Starts of processes that run for long, without the libraries of the command line.

Their parameters are the options that a process has beside `--check-config` and the like: `pod_uid` is
`--pod-uid`. `tests/cli/test_processes.py` holds them to the definition of the command line.
"""

from __future__ import annotations

import gc
import sys
from contextlib import contextmanager
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType

    from k8s_rdma.config.agent import AgentConfig
    from k8s_rdma.config.devices import Read

PROGRAM = "k8s-rdma"
COMPLETE = "_K8S_RDMA_COMPLETE"
"""The variable by which a shell's script asks for completions, by typer's rule; no process starts then."""


def load_without_extras() -> None:
    """Load structlog as if rich were not installed; call this before structlog is loaded elsewhere.

    structlog's console renderer loads rich if it is installed: 4 MiB in every process of every node, for
    terminals only. Later imports of rich work. HTTP's client loads h2 in the same way, 3 MiB for HTTP/2,
    which is not used; the client is loaded late, so h2 stays away. Source: The Python Language Reference,
    section 5.3.1: a module that is None in `sys.modules` is not found.
    """
    if "rich" in sys.modules:
        return
    sys.modules |= dict.fromkeys(("rich", "h2"), cast("ModuleType", None))
    try:
        import structlog  # noqa: F401
    finally:
        del sys.modules["rich"]


@contextmanager
def _collector_at_rest() -> Iterator[None]:
    """Collect no garbage while modules are loaded, because they stay: an eighth less time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def read_agent_config(config: str | None, node: str | None, kernel: str | None) -> AgentConfig:
    """Read the agent's configuration; MalformedError names the file and the field."""
    load_without_extras()
    from k8s_rdma.config.agent import AgentConfig
    from k8s_rdma.config.files import load_config

    return load_config(AgentConfig, config, {"node": node, "kernel": kernel})


def start_agent(*, config: str | None = None, node: str | None = None, kernel: str | None = None) -> None:
    """Run the agent until it is ended."""
    settings = read_agent_config(config, node, kernel)
    from k8s_rdma.agent.main import run

    run(settings)


def start_server(*, config: str | None = None, node: str | None = None) -> None:
    """Run the node's server until it is ended."""
    load_without_extras()
    from k8s_rdma.config.files import load_config
    from k8s_rdma.config.server import ServerConfig
    from k8s_rdma.server.main import run

    run(load_config(ServerConfig, config, {"node": node}))


def run_device_plugin(settings: Read) -> None:
    """Run the device plugin until it is ended."""
    from k8s_rdma.deviceplugin.main import run

    run(settings.config, ignored=settings.ignored)


def start_device_plugin(
    *, config: str | None = None, node: str | None = None, pod_uid: str | None = None
) -> None:
    """Run the device plugin without options of its predecessors until it is ended."""
    load_without_extras()
    from k8s_rdma.cli.device_plugin import CommandLine, read_command_line

    line = CommandLine(config=config, node=node, pod_uid=pod_uid, hustcat={}, mellanox={})
    run_device_plugin(read_command_line(line))


def start_extender(*, config: str | None = None) -> None:
    """Run the extender until it is ended."""
    load_without_extras()
    with _collector_at_rest():
        from k8s_rdma.config.extender import ExtenderConfig
        from k8s_rdma.config.files import load_config
        from k8s_rdma.extender.main import run

    run(load_config(ExtenderConfig, config, {}))


def start_webhook(*, config: str | None = None) -> None:
    """Run the webhook until it is ended."""
    load_without_extras()
    from k8s_rdma.config.files import load_config
    from k8s_rdma.config.webhook import WebhookConfig
    from k8s_rdma.webhook.main import run

    run(load_config(WebhookConfig, config, {}))


def start_web(*, config: str | None = None) -> None:
    """Run the pages until they are ended."""
    load_without_extras()
    from k8s_rdma.config.files import load_config
    from k8s_rdma.config.web import WebConfig
    from k8s_rdma.web.main import run

    run(load_config(WebConfig, config, {}))


PROCESSES: dict[str, Callable[..., None]] = {
    "agent": start_agent,
    "server": start_server,
    "device-plugin": start_device_plugin,
    "extender": start_extender,
    "webhook": start_webhook,
    "web": start_web,
}


def plain_start(arguments: Sequence[str]) -> Callable[[], None] | None:
    """Return the start of a process, if its command line is plain.

    Plain is the name of a process, and each of its options at most once as `--name VALUE` or `--name=VALUE`,
    as manifests have them; for example, `agent --config FILE --node NAME`. A VALUE that begins with a dash
    may be a mistake, which the command line explains.
    """
    start = PROCESSES.get(arguments[0]) if arguments else None
    if start is None:
        return None
    parameters = {f"--{name.replace('_', '-')}": name for name in signature(start).parameters}
    values: dict[str, str] = {}
    remaining = iter(arguments[1:])
    for argument in remaining:
        option, equals, value = argument.partition("=")
        if not equals:
            value = next(remaining, "-")
        name = parameters.get(option)
        if name is None or name in values or value.startswith("-"):
            return None
        values[name] = value
    return partial(start, **values)
