"""``torchloom demo --scenario checkpoints``: a job that is restored from the nearest tier."""
