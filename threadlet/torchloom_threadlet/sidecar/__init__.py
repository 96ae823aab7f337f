"""The sidecar: the process beside the trainer that speaks NATS and sees the trainer end."""
