"""What all packages stand on: errors, clock, files, server URLs."""
