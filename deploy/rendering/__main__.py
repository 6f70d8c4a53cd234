"""`python -m deploy.rendering`: the chart's version and schema, the manifests and the table of privileges.

The definition of RdmaNodes and the policies come first, because manifests have them.
"""

from __future__ import annotations

from deploy.rdma_node_crd import write_manifest
from deploy.rendering.chart import write_version
from deploy.rendering.keys import write_policies
from deploy.rendering.manifests import write_manifests
from deploy.rendering.privileges import write_table
from deploy.rendering.schema import write_schema

write_manifest()
write_policies()
write_version()
write_schema()
write_manifests()
write_table()
