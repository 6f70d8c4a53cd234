"""The evaluation on two emulated nodes: pods with reservations and caps, and the traffic between them."""
