"""The dashboard: a web page on a run, and a client of the same subjects as the command line."""
