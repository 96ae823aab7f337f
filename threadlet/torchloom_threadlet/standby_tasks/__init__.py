"""What standby tasks share: a budget, the pace of their reports, and a state to restore."""
