"""The policies that come with torchLoom, one per file; each is an ordinary plugin."""
