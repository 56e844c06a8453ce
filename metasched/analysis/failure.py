"""Why a condition does not hold: a slug, a sentence rendered only when read, and the node."""

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
        text: the sentence, or a function that makes it (search drops failures by the thousand).
        node: the statement or expression that fails the condition.
    """

    slug: str
    text: str | Callable[[], str]
    node: Stmt | Expr | None = None

    @property
    def sentence(self) -> str:
        """The failed condition in words, with the expressions involved."""
        return self.text if isinstance(self.text, str) else self.text()

    def __str__(self) -> str:
        return f"{self.sentence} [{self.slug}]"
