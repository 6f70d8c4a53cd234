"""Addresses of the processes of a cluster, unless a configuration names others."""

NAMESPACE = "k8s-rdma"
"""The chart's namespace, if it was installed as documented."""

SERVER_PORT = 54005
"""Port of the RDMA hardware DaemonSet, because its users look for this server there."""

DEVICE_PLUGIN_PORT = 54006
WEBHOOK_PORT = 54007
WEB_PORT = 54008

EXTENDER_PORT = 8888
"""Port of earlier RDMA scheduler extenders."""

VIEWS_PORT = 8889
EXTENDER_URL = f"http://127.0.0.1:{EXTENDER_PORT}"
"""The extender's URL for processes of its own host."""
