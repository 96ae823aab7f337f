"""What the fleet model does for each kind of action, one module each."""
