"""``torchloom demo --scenario bandwidth``: links become slow, and what is sent is chosen anew."""
