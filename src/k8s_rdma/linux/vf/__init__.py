"""VFs changed: made, moved, rated, brought home."""
