"""Where the states of nodes come from."""
