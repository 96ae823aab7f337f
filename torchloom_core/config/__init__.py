"""torchloom.toml: its schema, how it is read, and its error messages."""
