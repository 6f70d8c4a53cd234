"""The node's only writer: owns ledger and kernel, serves the CNI verbs."""
