"""``torchloom demo``: a real torchft run with a failure, without torchLoom and with it."""
