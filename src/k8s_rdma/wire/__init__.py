"""Bytes to core values and back, one module per specification."""
