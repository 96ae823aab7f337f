"""Pieces of a standby task that is one command's alone."""


def take(pieces, note):
    """Have a note taken, of a standby task with the name of its command."""
    pieces.take(note, note.fields["command"])
