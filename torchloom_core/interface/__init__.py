"""What policies and predictors see and propose; :mod:`torchloom_core.plugin` is the public door."""
