"""Enters the device row of each built-in kind of target; a new kind is imported here."""

from metasched.runtime import cpu as cpu
