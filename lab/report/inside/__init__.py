"""Programs that run in guests."""
