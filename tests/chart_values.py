"""Values of the chart that tests render: each way, many of the settings, and few of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

Json = dict[str, Any]

SERVICE = {"extender": {"mode": "service", "replicas": 2, "tlsSecretName": "extender-tls"}}
MUCH = {
    "hardware": {"requireRdma": False, "pfs": [{"names": ["eth1"], "numVfs": 8}]},
    "node": {
        "agent": {"config": {"stuckAfterS": 60, "publish": {"vfResource": "k8s-rdma.io/vf", "renewS": 5}}},
        "server": {
            "config": {"port": 54105},
            "tls": {"secretName": "server-tls", "clientCa": True},
            "tokensSecretName": "server-tokens",
        },
        "devicePlugin": {"config": {"port": 54106, "resources": [{"mode": "exact"}]}},
        "cni": {
            "plugin": {"ipam": {"type": "host-local"}},
            "network": "alone",
            "capabilities": ["DAC_OVERRIDE"],
        },
    },
    "extender": {
        **SERVICE["extender"],
        "config": {
            "source": "http",
            "limits": [{"namespace": "*", "vfs": 8}],
            "vfResource": "k8s-rdma.io/vf",
        },
    },
    "monitoring": {"serviceMonitor": {"enabled": True}},
    "placementKey": {"value": "a key"},
}
GIVEN: Mapping[str, Json] = {
    "defaults": {},
    "host-network": {"extender": {"mode": "host-network"}},
    "service": SERVICE,
    "much": MUCH,
    "claims": {
        "dra": {"enabled": True},
        "hardware": {"pfs": [{"names": ["eth1"], "use": "claims"}, {"names": ["eth2"], "use": "annotation"}]},
    },
    "web": {"viewers": {"enabled": True}, "web": {"enabled": True}},
    "reviewed web": {
        "viewers": {"enabled": True},
        "web": {"enabled": True, "access": "reviews", "tlsSecretName": "web-tls"},
    },
    "uninstalling": {"node": {"uninstall": True}},
    "little": {
        "node": {"devicePlugin": {"enabled": False}, "cni": {"enabled": False}},
        "extender": {"enabled": False},
        "policies": {"enabled": False},
        "placementKey": {"create": False},
    },
}
