"""Repeat the step of one micro-batch: the same units, once for each of several."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain

from splitnet.simulator.step_graph import StepGraph, Table, at_home
from splitnet.simulator.task_graph import Edge, SharedWeight

__all__ = ["repeated"]


def repeated(pieces: Sequence[StepGraph]) -> StepGraph:
    """One step of several micro-batches, from the step of each.

    The pieces have the same units and use the same weights, which are at home, and are
    updated, in the first piece.
    """
    first, n = pieces[0], pieces[0].count

    def later(column: Sequence[int]) -> tuple[int, ...]:
        return (*column, *[0] * (n * (len(pieces) - 1)))

    home = [sum(w.bytes for w in own) for own in at_home(n, first.all_weights)]
    beside = [size - own for size, own in zip(first.weight_bytes, home)]
    rows = {id(row): (*row, *[0.0] * (n * (len(pieces) - 1))) for row in first.update}
    return replace(
        first,
        names=first.names * len(pieces),
        parts=first.parts * len(pieces),
        forward=_side_by_side([one.forward for one in pieces]),
        backward=_side_by_side([one.backward for one in pieces]),
        update=tuple(rows[id(row)] for row in first.update),
        has_backward=first.has_backward * len(pieces),
        has_update=tuple(map(bool, later(first.has_update))),
        explicit_backward=first.explicit_backward * len(pieces),
        edges=tuple(
            _moved(edge, m * n) for m, one in enumerate(pieces) for edge in one.edges
        ),
        all_weights=tuple(
            _used_by_all(same, n) for same in zip(*(one.all_weights for one in pieces))
        ),
        weight_bytes=(*first.weight_bytes, *beside * (len(pieces) - 1)),
        trained_bytes=later(first.trained_bytes),
        gradient_bytes=later(first.gradient_bytes),
        largest_update=later(first.largest_update),
        saved_bytes=_chain(one.saved_bytes for one in pieces),
        saved_floor=later(first.saved_floor),
        forward_workspace=_chain(one.forward_workspace for one in pieces),
        backward_workspace=_chain(one.backward_workspace for one in pieces),
        early_workspace=_chain(one.early_workspace for one in pieces),
        calls=first.calls * len(pieces),
        microbatches=len(pieces),
    )


def _chain(columns: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(chain.from_iterable(columns))


def _side_by_side(tables: Sequence[Table]) -> Table:
    """Tables beside each other; rows that are one object in all of them stay one."""
    rows: dict[tuple[int, ...], tuple[float, ...]] = {}
    for row in zip(*tables):
        rows.setdefault(tuple(map(id, row)), tuple(chain.from_iterable(row)))
    return tuple(rows[tuple(map(id, row))] for row in zip(*tables))


def _moved(edge: Edge, by: int) -> Edge:
    """The same tensor between units whose numbers are higher by so many."""
    if not by:
        return edge

    def moved(units: Sequence[int]) -> tuple[int, ...]:
        return tuple(unit + by for unit in units)

    return replace(
        edge,
        source=edge.source + by,
        readers=moved(edge.readers),
        gradients_from=moved(edge.gradients_from),
        saved_by=moved(edge.saved_by),
    )


def _used_by_all(same: Sequence[SharedWeight], n: int) -> SharedWeight:
    """A weight of all pieces, each of `n` units."""
    rows = [one.row_bytes or (0,) * len(one.gradients_from) for one in same]
    return replace(
        same[0],
        users=tuple(m * n + u for m, one in enumerate(same) for u in one.users),
        gradients_from=tuple(
            m * n + u for m, one in enumerate(same) for u in one.gradients_from
        ),
        row_bytes=_chain(rows) if any(map(any, rows)) else (),
    )
