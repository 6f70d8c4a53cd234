"""filter, prioritize, preempt and bind."""
