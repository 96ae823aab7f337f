"""Which plugins are installed and active, and how they are called so that none harms another."""
