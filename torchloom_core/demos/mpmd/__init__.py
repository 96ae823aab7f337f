"""``torchloom demo --scenario mpmd``: a pipeline loses stages, and experts lose a host."""
