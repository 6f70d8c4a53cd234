"""Discovery of a machine's PFs and VFs and their state. Reads only."""
