"""The HTTP interface: who may ask, bodies in, bodies out."""
