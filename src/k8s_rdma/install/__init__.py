"""The CNI executable and the network configuration on a node: putting them there, and taking them away."""
