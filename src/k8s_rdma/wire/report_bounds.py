"""Bounds of what a node may publish of itself, which its decoder and its CustomResourceDefinition share.

A node is not trusted for being one of the cluster: what it publishes is read by the process that schedules
for all others. So every list, text and number has a bound, generous above real machines (docs/limits.md,
"Sizes"), and what goes beyond it makes this one node unreadable. The schema is made of the same types
(`deploy/rdma_node_crd.py`), so that the API server refuses what the decoder would.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from k8s_rdma.core.request import MAX_INTERFACES
from k8s_rdma.core.types import MAX_RATE_MBPS

MAX_PFS = 64
MAX_VFS = 4096
"""Of one PF, or held of one PF by one pod; SR-IOV itself has 16 bits for them, cards have hundreds."""

MAX_HELD_VFS = 16_384
"""Of a node, by pods and by others. Some bytes of a status can stand for thousands, and each is looked at."""

MAX_PODS = 4096
"""Of a node, that hold interfaces: kubelet's own default is 110 pods of any kind."""

MAX_MACS = 16_384
"""Ranges of them of a node; as many addresses as its VFs can have, see `rdma_node`."""

MAX_POOLS = 64
MAX_SETTINGS = 64
MAX_PROBLEMS = 16
MAX_CONDITIONS = 16

UNIQUE = {"pfs": "pci", "pools": "resource"}
"""Lists whose items differ in this field; `x-kubernetes-list-map-keys` of the schema."""

LABEL = r"^[ -~]*\Z"
"""Printable ASCII. `$` would let a newline at the end pass in Python; a schema writes it, see there."""

GENERATION = r"^[!#-~]+\Z"
"""As `rest.GENERATION_PATTERN`."""

PCI = r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]\Z"
"""As `core.types.pci_address` writes it."""

MAC = r"^[0-9a-f]{2}(:[0-9a-f]{2}){5}\Z"

MAX_LABEL = 63
MAX_NAME = 253
"""Of a Kubernetes object (DNS subdomain, RFC 1123)."""

MAX_RESOURCE = 317
"""A DNS subdomain, a slash, and 63 characters."""

MAX_PROBLEM = 1024
MAX_MESSAGE = 2048

Mbps = Annotated[int, Meta(ge=0, le=MAX_RATE_MBPS)]
Rate = Annotated[int, Meta(ge=1, le=MAX_RATE_MBPS)]
Mtu = Annotated[int, Meta(ge=0, le=2**32 - 1)]
"""The kernel's is unsigned 32 bits (`IFLA_MTU`)."""

NumaNode = Annotated[int, Meta(ge=0, le=1023)]
"""The kernel has 1,024 at most (`NODES_SHIFT`, arch/x86/Kconfig)."""

Vfs = Annotated[int, Meta(ge=0, le=MAX_VFS)]
SomeVfs = Annotated[int, Meta(ge=1, le=MAX_VFS)]
Weight = Annotated[int, Meta(ge=1, le=65_535)]
Entry = Annotated[int, Meta(ge=0, le=MAX_INTERFACES - 1)]

Label = Annotated[str, Meta(max_length=MAX_LABEL, pattern=LABEL)]
Name = Annotated[str, Meta(max_length=MAX_NAME, pattern=LABEL)]
Resource = Annotated[str, Meta(max_length=MAX_RESOURCE, pattern=LABEL)]
Pci = Annotated[str, Meta(pattern=PCI)]
Mac = Annotated[str, Meta(max_length=17, pattern=MAC)]
Generation = Annotated[str, Meta(max_length=MAX_NAME, pattern=GENERATION)]
Problem = Annotated[str, Meta(max_length=MAX_PROBLEM)]
Message = Annotated[str, Meta(max_length=MAX_MESSAGE)]
