"""A bundle played to a kernel: who is where, what is measured, what fails."""
