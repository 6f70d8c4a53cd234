"""One binder: the Lease, and the fence against whoever held it before."""
