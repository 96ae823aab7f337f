"""Play arms on a bandwidth trace, for runs whose step time depends on the network."""
