"""The process beside the trainer: it speaks NATS, and sees the trainer end."""
