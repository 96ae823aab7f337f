"""Exports: a checkpoint's content in formats that other programs read."""
