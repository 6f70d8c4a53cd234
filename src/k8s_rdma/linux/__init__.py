"""The kernel's door: network namespaces, netlink, the receipts on disk."""
