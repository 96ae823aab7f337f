"""The checks of ``torchloom doctor``: a module a topic, a small function a check."""
