"""Pure: values in, values out. No I/O, no clock, no third-party import."""
