"""Which devices go together."""
