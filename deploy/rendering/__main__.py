"""`python -m deploy.rendering`: the chart's version and schema, the manifests and the table of privileges."""

from __future__ import annotations

from deploy.rendering.chart import write_version
from deploy.rendering.manifests import write_manifests
from deploy.rendering.privileges import write_table
from deploy.rendering.schema import write_schema

write_version()
write_schema()
write_manifests()
write_table()
