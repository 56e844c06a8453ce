"""Failure: why a condition does not hold, as a slug, a lazy message, and the node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from metasched.ir.expr import Expr
from metasched.ir.stmt import Stmt


@dataclass(frozen=True, slots=True, eq=False)
class Failure:
    """A condition that does not hold. Analyses return None in place of it if the condition holds.

    Attributes:
        slug: the kind of the failure in one word, such as `no-init`.
        sentence: the failed condition in words, with the expressions involved; or a function that
            makes the sentence when `message` is read, because a search reads few messages.
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
