"""``torchloom fit``: a predictor learns from a trace, and is scored on the time after."""
