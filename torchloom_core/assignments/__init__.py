"""Assignments of layers and experts to workers: checked, proposed after a loss, and priced."""
