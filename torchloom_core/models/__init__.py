"""Fitted predictors on disk: what they learned, how they are calibrated, their card."""
