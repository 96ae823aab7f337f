"""Pieces of a standby task that is one command's alone."""

from functools import partial

import msgspec

from torchloom_core.wire.messages import Note


def note(piece, command="c1.1", *, kind, worker="v0-0", points=5, of=9, incarnation=1):
    """Return the note with which a worker sends a piece; a text is sent as it is."""
    text = piece if isinstance(piece, str) else msgspec.json.encode(piece).decode()
    fields = {"command": command, "points": points, "of": of, "piece": text}
    return Note(run="run", worker=worker, incarnation=incarnation, kind=kind, fields=fields)


landscape_note = partial(note, kind="landscape")
preview_note = partial(note, kind="preview")


def take(pieces, note):
    """Have a note taken, of a standby task with the name of its command."""
    pieces.take(note, note.fields["command"])
