"""The loss around the weights: what it is along a line and in a plane, and how sharply it bends."""
