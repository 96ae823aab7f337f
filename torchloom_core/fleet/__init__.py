"""The fleet as columns: who is there, what they measured, and the view policies get of it."""
