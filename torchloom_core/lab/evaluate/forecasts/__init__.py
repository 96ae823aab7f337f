"""How good forecasts are: labels, scores, intervals, leaks."""
