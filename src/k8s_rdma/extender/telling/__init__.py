"""What is told of decisions and calls: log lines and figures."""
