"""The agent's side of the cluster: informers, events, annotations, and the published node."""
