"""Text in, text out: the TVMScript-like dialect."""
