"""``torchloom demo --scenario bandwidth``: links become slow, and the compression adapts."""
