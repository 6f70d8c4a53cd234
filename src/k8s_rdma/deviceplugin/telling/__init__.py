"""What people are told: health in log lines and events, figures, HTTP."""
