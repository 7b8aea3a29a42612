"""A row of pieces in running order, and neighbours in it merged until few are left."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["Piece", "Row"]


@dataclass(slots=True)
class Piece:
    """Calls by number that will be one part; they grow as pieces are merged.

    Only pieces that are `free` and of one wish are merged.
    """

    calls: list[int]
    weight: float
    wish: tuple[object, ...]
    free: bool


class Row:
    """Pieces in running order; `pieces` is what is left of them."""

    def __init__(
        self, pieces: list[Piece], predecessors: Sequence[Sequence[int]]
    ) -> None:
        self.pieces = pieces
        self._predecessors = predecessors
        self._owner = {call: piece for piece in pieces for call in piece.calls}

    @property
    def free(self) -> int:
        """How many pieces may be merged."""
        return sum(piece.free for piece in self.pieces)

    def sweep(self, limit: float, *, talking: bool) -> None:
        """Merge each piece into its left neighbour while the two weigh at most `limit`.

        With `talking`, only a piece that reads from its neighbour.
        """
        kept: list[Piece] = []
        for piece in self.pieces:
            left = kept[-1] if kept else None
            if (
                left is not None
                and _alike(left, piece)
                and left.weight + piece.weight <= limit
                and (not talking or self._talk(left, piece))
            ):
                self._merge(left, piece)
            else:
                kept.append(piece)
        self.pieces = kept

    def shorten(self, most: int) -> None:
        """Merge the lightest two neighbours until at most `most` pieces are free.

        Pieces of unlike wishes stay, so more may be left.
        """
        while self.free > most:
            pairs = [
                (left.weight + right.weight, i)
                for i, (left, right) in enumerate(pairwise(self.pieces))
                if _alike(left, right)
            ]
            if not pairs:
                return
            _, i = min(pairs)
            self._merge(self.pieces[i], self.pieces.pop(i + 1))

    def _merge(self, left: Piece, right: Piece) -> None:
        left.calls += right.calls
        left.weight += right.weight
        for call in right.calls:
            self._owner[call] = left

    def _talk(self, left: Piece, right: Piece) -> bool:
        return any(
            self._owner[before] is left
            for call in right.calls
            for before in self._predecessors[call]
        )


def _alike(left: Piece, right: Piece) -> bool:
    return left.free and right.free and left.wish == right.wish
