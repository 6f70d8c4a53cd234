"""Netlink and ethtool's ioctl: requests to the kernel and their decoded answers."""
