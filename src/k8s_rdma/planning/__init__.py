"""Planning: capacity questions answered on a copy of the cluster, by the code that decides in production."""
