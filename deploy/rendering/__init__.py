"""What `make chart` makes of `deploy/chart`: the values' schema, `deploy/manifests`, a table in the docs."""
