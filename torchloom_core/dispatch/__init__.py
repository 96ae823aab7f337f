"""What was granted becomes commands, and what comes back an outcome."""
