"""Directories and files of a node, unless a configuration names others."""

RUN_DIR = "/run/k8s-rdma"
"""The agent's sockets; `cni/netconf.c` has the same default."""

CNI_SOCKET = "cni.sock"
"""Calls of the CNI executable; `cni/netconf.h` has the same name."""

STATE_SOCKET = "state.sock"
"""The node's state, and placements for an agent without credentials."""

CDI_SOCKET = "cdi.sock"
"""The device plugin's resources, which the agent publishes as CDI devices."""

CLAIMS_SOCKET = "claims.sock"
"""Claims that kubelet has the DRA driver prepare."""

STATE_DIR = "/var/lib/k8s-rdma"
"""The agent's ledger."""

CDI_DIR = "/var/run/cdi"
"""The directory of specifications of devices that are made at run time. Source: `SPEC.md` of CDI."""

CNI_BIN_DIR = "/opt/cni/bin"
"""The directory of CNI plugins, by default of containerd and CRI-O."""

CNI_CONF_DIR = "/etc/cni/net.d"
"""The directory of networks, by default of containerd and CRI-O."""

CONFLIST = "00-k8s-rdma.conflist"
"""The name of our network's file, which must sort before all other files of `CNI_CONF_DIR`."""
