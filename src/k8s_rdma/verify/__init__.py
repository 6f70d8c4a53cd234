"""Proof that rates hold on a node's own cards: traffic between interfaces of ordinary calls."""
