"""`python -m k8s_rdma.linux.virtual create|destroy`: a virtual PF in the network namespace of the caller."""

from __future__ import annotations

import argparse
import sys

from k8s_rdma.core.types import pci_address
from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.linux.netlink.rtnl import Rtnl
from k8s_rdma.linux.virtual.pf import create_pf, destroy_pf
from k8s_rdma.linux.virtual.topology import DEFAULT_LINK_MBPS, VirtualPf, pf_of, random_base_mac


def main() -> int:
    """Run the command line; a failure is one line on stderr and exit status 1."""
    options = _options()
    try:
        with Rtnl() as rtnl:
            existing = rtnl.link(options.name)
            found = pf_of(existing) if existing else None
            if options.command == "destroy":
                if found is not None:
                    destroy_pf(found, rtnl)
                return 0
            pf = VirtualPf(
                name=options.name,
                pci=pci_address(options.pci),
                uplink=options.uplink,
                vfs=options.vfs,
                link_mbps=options.link_mbps,
                base_mac=found.base_mac if found else random_base_mac(),
            )
            create_pf(pf, rtnl)
    except (K8sRdmaError, ValueError) as error:
        sys.stderr.write(f"{options.command} {options.name}: {error}\n")
        return 1
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m k8s_rdma.linux.virtual", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    create = commands.add_parser("create", help="create a PF with its VFs; no change when it exists")
    create.add_argument("--pci", required=True, help="the PCI address it shall bear, dddd:bb:dd.f")
    create.add_argument("--uplink", required=True, help="an existing interface that leads to the network")
    create.add_argument("--vfs", type=int, default=8, help="how many VFs (%(default)s)")
    create.add_argument("--link-mbps", type=int, default=DEFAULT_LINK_MBPS, help="link speed (%(default)s)")
    for command in (
        create,
        commands.add_parser("destroy", help="destroy a PF; no change when it does not exist"),
    ):
        command.add_argument("--name", required=True, help="the PF's interface name")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
