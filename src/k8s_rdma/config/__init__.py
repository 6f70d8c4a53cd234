"""Configuration files: how they are read, and the parts that several processes have."""
