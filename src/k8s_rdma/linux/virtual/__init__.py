"""Virtual SR-IOV made of ordinary Linux parts: bridges, veth pairs, HTB. See docs/virtual-sriov.md."""
