"""Search: which candidates to measure next, given what was measured."""
