"""Proof that promises hold on a node's own cards: traffic between interfaces that come by the normal way."""
