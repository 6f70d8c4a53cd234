"""Kubelet's messages as protobuf has them, made from the `.proto` files here by `make proto`.

Only the modules of `wire` use them; everything else uses dataclasses with the same content.
"""
