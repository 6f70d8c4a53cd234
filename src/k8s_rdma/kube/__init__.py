"""The door to the API server."""
