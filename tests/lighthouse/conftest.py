import os

os.environ.setdefault("RUST_LOG", "error")  # torchft's own lighthouse logs several lines per step
