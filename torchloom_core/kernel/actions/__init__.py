"""The kinds of action, one module each: all that the core knows of what can be done to a run."""
