"""The kinds of action, one module each: everything the core knows about actions on a run."""
