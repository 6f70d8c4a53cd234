"""Changes of VFs: creation, drivers, settings and rates, moves to pods and back."""
