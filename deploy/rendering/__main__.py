"""`python -m deploy.rendering`: the chart's version and schema, the manifests and the table of privileges.

The definition of RdmaNodes comes first, because manifests have it.
"""

from __future__ import annotations

from deploy.rdma_node_crd import write_manifest
from deploy.rendering.chart import write_version
from deploy.rendering.manifests import write_manifests
from deploy.rendering.privileges import write_table
from deploy.rendering.schema import write_schema

write_manifest()
write_version()
write_schema()
write_manifests()
write_table()
