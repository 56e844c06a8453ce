"""Failure: why a condition does not hold, as a slug, a lazy message, and the node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from metasched.ir.expr import Expr
from metasched.ir.stmt import Stmt


@dataclass(frozen=True, slots=True, eq=False)
class Failure:
    """A condition that does not hold; the analyses return None where it does.

    Attributes:
        slug: a short word, the same for every failure of one kind.
        sentence: the failed condition in words, with the expressions involved, or a function that
            makes the sentence (a search drops thousands of failures unread; `message` renders).
        node: the statement or expression that fails the condition.
    """

    slug: str
    sentence: str | Callable[[], str]
    node: Stmt | Expr | None = None

    @property
    def message(self) -> str:
        """The sentence, rendered."""
        return self.sentence if isinstance(self.sentence, str) else self.sentence()

    def __str__(self) -> str:
        return f"{self.message} [{self.slug}]"
