"""``python -m torchloom_core.cli``: ``torchloom`` with this interpreter."""

from torchloom_core.cli import main

main()
