"""What learns from recorded runs and judges on them: traces, fleet model, backtest, fits."""
