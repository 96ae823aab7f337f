"""The process that stores what a rank has copied into its slots; it outlives the rank."""
