"""What people may look at: explain, top."""
