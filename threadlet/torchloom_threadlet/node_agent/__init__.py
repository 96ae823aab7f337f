"""The agent of a node: runs the program of one role at a time, and changes it on command."""
