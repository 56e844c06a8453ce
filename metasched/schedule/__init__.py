"""Edits of a program, recorded as a replayable trace."""
