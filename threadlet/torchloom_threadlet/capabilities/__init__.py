"""The parts of torchLoom's own operations, found by entry points as any package's."""
