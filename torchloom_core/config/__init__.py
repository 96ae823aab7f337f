"""torchloom.toml: its shape, how it is read, and what a mistake in it is answered with."""
