"""The evaluation on two emulated nodes: pods with reservations and caps, and what passes between them."""
