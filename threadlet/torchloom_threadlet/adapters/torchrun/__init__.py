"""DDP and FSDP under plain torchrun: ranks that stay the same from start to end."""
