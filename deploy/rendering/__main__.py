"""`python -m deploy.rendering`: the values' schema, the manifests and the table of privileges, made anew."""

from __future__ import annotations

from deploy.rendering.manifests import write_manifests
from deploy.rendering.privileges import write_table
from deploy.rendering.schema import write_schema

write_schema()
write_manifests()
write_table()
