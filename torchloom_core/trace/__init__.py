"""Trace bundles: what happened to a fleet, on disk, for backtests and for fitting predictors."""
