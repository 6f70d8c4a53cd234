"""A configuration looked at without being used."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from k8s_rdma.config.files import port_of
from k8s_rdma.config.namespace_policies import load_policies
from k8s_rdma.config.placement_keys import extender_keys
from k8s_rdma.extender.serving.access import access_of
from k8s_rdma.extender.sources.node_access import security_of
from k8s_rdma.kube.client import require_kubeconfig

if TYPE_CHECKING:
    from k8s_rdma.extender.config import ExtenderConfig


def check(config: ExtenderConfig) -> None:
    """Read everything that the configuration names, as the process does when it starts.

    MalformedError names the field and the file. Where no kubeconfig is named none is looked for: it depends
    on where the process runs.
    """
    load_policies(config.policy_file)
    extender_keys(config.placement_key_file)
    access_of(config)
    security_of(config)
    port_of(config, os.environ)
    if config.api and config.kubeconfig is not None:
        require_kubeconfig(config.kubeconfig)
