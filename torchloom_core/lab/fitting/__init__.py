"""``torchloom fit``: fit a predictor on a trace, and score it on later time."""
