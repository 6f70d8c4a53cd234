"""Where facts come from: files of the host, its kernel, its processes, the API server."""
