"""What policies are worth to a run that waits for its network: arms played on a bandwidth trace."""
