"""Netlink, and the ioctl beside it: bytes to the kernel and back."""
