"""What is said with kubelet: a socket for each resource, registration, and what keeps both so."""
