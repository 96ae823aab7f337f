"""``python -m torchloom_core.cli``: the same as ``torchloom``, of this interpreter."""

from torchloom_core.cli import main

main()
