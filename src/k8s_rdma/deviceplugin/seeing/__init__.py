"""What is there: the host's devices and the agent's word, judged together."""
