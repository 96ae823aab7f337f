"""``torchloom evaluate``: what policies and predictors would have done on a recorded trace."""
