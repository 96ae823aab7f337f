"""Pieces of an errand that is one command's alone."""


def take(pieces, note):
    """Have a note taken, of an errand with the name of its command."""
    pieces.take(note, note.fields["command"])
