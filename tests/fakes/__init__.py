"""Fakes of kernels and machines that the contract suite and the tests of every process run on."""
