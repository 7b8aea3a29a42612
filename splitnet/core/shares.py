"""How a batch is shared out, and what a branch of towers is declared with."""

from dataclasses import dataclass

__all__ = ["BATCH_NORMS", "Towers", "shares"]

BATCH_NORMS = ("per_tower", "synchronised")


@dataclass(frozen=True, slots=True)
class Towers:
    """How one body is replicated: `on` holds the wishes of each tower, in order.

    `broadcast` names the parts whose outputs every tower reads whole.
    """

    on: tuple[tuple[str, ...], ...]
    weights_on: tuple[str, ...] = ("cpu",)
    batch_norm: str = "per_tower"
    broadcast: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """How many towers there are."""
        return len(self.on)


def shares(batch: int, count: int) -> tuple[int, ...]:
    """Split a batch as evenly as can be, the larger shares first.

    >>> shares(7, 4), shares(2, 4)
    ((2, 2, 2, 1), (1, 1, 0, 0))
    """
    base, rest = divmod(batch, count)
    return tuple(base + (i < rest) for i in range(count))
