"""Kubelet's messages as protobuf has them, made from the `.proto` files here by `make proto`.

Nobody but the modules of `wire` uses them: what they say is told in dataclasses everywhere else.
"""
