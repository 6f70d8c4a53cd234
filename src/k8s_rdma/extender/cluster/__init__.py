"""What is known of the cluster: reports, promises, pods, and what is held back."""
