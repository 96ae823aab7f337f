"""``torchloom demo``: one real torchft run twice, its node lost once without help, once with."""
