import os

os.environ.setdefault("RUST_LOG", "error")  # torchft's own lighthouse says several lines a step
