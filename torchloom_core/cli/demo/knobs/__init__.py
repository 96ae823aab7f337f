"""``torchloom demo --scenario knobs``: knobs that land on every rank at the same step."""
