"""``torchloom demo --scenario knobs``: knobs that change on every rank at the same step."""
