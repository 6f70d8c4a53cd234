"""Protobuf messages, generated from the `.proto` files by `make proto`."""
