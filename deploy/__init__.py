"""What a cluster is given: the chart, manifests, roles, policies, and what makes them."""
