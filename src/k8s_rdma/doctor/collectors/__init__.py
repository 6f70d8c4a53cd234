"""Sources of facts: the host's files, kernel and processes, and the API server."""
