"""Fold what repeats, so that a picture of 300 branches is not wallpaper.

Works on names and edges alone. Two things fold: a run on one device whose members
repeat ("block_0 … block_11, 12 times in a row"), and members of one device that read
from the same and feed the same ("tower_0 … tower_74, 75 side by side"). Equal members
fold first; unequal ones only if that did not make the picture small enough.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

__all__ = ["Group", "fold"]

_LONGEST_PERIOD = 8
_COLUMNS = 4


@dataclass(frozen=True, slots=True)
class Group:
    """Members drawn as one box; `times` is how often the pattern repeats, 0 if unequal.

    `way` is "" for one member, "in a row", "side by side" or "mixed". `column` counts
    from 1 where a tangle was folded into a grid, and is 0 elsewhere.
    """

    members: tuple[str, ...]
    times: int = 1
    way: str = ""
    column: int = 0

    @property
    def period(self) -> int:
        """How many members make one pattern; 0 if they are unequal."""
        return len(self.members) // self.times if self.times else 0


class _Folding:
    """The graph while it shrinks: a vertex is the number of its first member."""

    def __init__(
        self,
        names: Sequence[str],
        edges: Iterable[tuple[str, str]],
        place: Mapping[str, Hashable],
        look: Mapping[str, Hashable],
    ) -> None:
        number = {name: i for i, name in enumerate(names)}
        self.groups = {i: Group((name,)) for i, name in enumerate(names)}
        self.place = {i: place[name] for i, name in enumerate(names)}
        self.look: dict[int, Hashable] = {i: look[n] for i, n in enumerate(names)}
        self.after: dict[int, set[int]] = {i: set() for i in self.groups}
        self.before: dict[int, set[int]] = {i: set() for i in self.groups}
        for source, target in edges:
            if source in number and target in number and source != target:
                self.after[number[source]].add(number[target])
                self.before[number[target]].add(number[source])

    def join(self, members: Sequence[int], times: int, way: str) -> None:
        """Replace vertices by the first of them; the order of members is kept."""
        first = members[0]
        inside = set(members)
        ways = {way, *(self.groups[m].way for m in members)} - {""}
        names = tuple(n for m in members for n in self.groups[m].members)
        if len(ways) > 1 and not times:
            way = "mixed"
        look = (way, times, tuple(self.look[m] for m in members[:_LONGEST_PERIOD]))
        for ends, back in ((self.after, self.before), (self.before, self.after)):
            outside = set().union(*(ends[m] for m in members)) - inside
            for other in outside:
                back[other] = (back[other] - inside) | {first}
            ends[first] = outside
        for member in members[1:]:
            for table in (self.groups, self.place, self.look, self.after, self.before):
                table.pop(member)
        self.groups[first] = Group(names, times, way)
        self.look[first] = look

    def fold_beside(self, equal: bool) -> bool:
        """Fold members of one place with the same neighbours before and after."""
        classes: dict[Hashable, list[int]] = {}
        for vertex in sorted(self.groups):
            key: Hashable = (
                self.place[vertex],
                self.look[vertex] if equal else None,
                tuple(sorted(self.before[vertex])),
                tuple(sorted(self.after[vertex])),
            )
            classes.setdefault(key, []).append(vertex)
        found = [members for members in classes.values() if len(members) > 1]
        for members in found:
            same = len({self.look[m] for m in members}) == 1
            self.join(members, len(members) if same else 0, "side by side")
        return bool(found)

    def fold_rows(self, equal: bool) -> bool:
        """Fold runs of one place: repeated patterns, or the whole run if need be."""
        changed = False
        for run in self._runs():
            pieces = self._patterns(run) if equal else [(run, 0)]
            for members, times in pieces:
                if len(members) > 1:
                    self.join(members, times, "in a row")
                    changed = True
        return changed

    def _runs(self) -> list[list[int]]:
        """Longest chains on one place in which each feeds only the next."""
        follows: dict[int, int] = {}
        for vertex in sorted(self.groups):
            if len(self.after[vertex]) == 1:
                (target,) = self.after[vertex]
                alone = len(self.before[target]) == 1
                if alone and self.place[target] == self.place[vertex]:
                    follows[vertex] = target
        starts = set(follows) - set(follows.values())
        runs = []
        for vertex in sorted(starts):
            run = [vertex]
            while run[-1] in follows:
                run.append(follows[run[-1]])
            runs.append(run)
        return runs

    def _patterns(self, run: list[int]) -> list[tuple[list[int], int]]:
        """Cut a run into repeated patterns, the shortest that repeats first."""
        looks = [self.look[vertex] for vertex in run]
        pieces: list[tuple[list[int], int]] = []
        at = 0
        while at < len(run):
            period, times = _repetition(looks, at)
            pieces.append((run[at : at + period * times], times))
            at += period * times
        return pieces


def _repetition(looks: list[Hashable], at: int) -> tuple[int, int]:
    """The pattern at a position that covers most: its length and how often it comes."""
    best = (1, 1)
    for period in range(1, min(_LONGEST_PERIOD, (len(looks) - at) // 2) + 1):
        pattern = looks[at : at + period]
        times = 1
        while looks[at + period * times : at + period * (times + 1)] == pattern:
            times += 1
        if times > 1 and period * times > best[0] * best[1]:
            best = (period, times)
    return best


def fold(
    names: Sequence[str],
    edges: Iterable[tuple[str, str]],
    place: Mapping[str, Hashable],
    look: Mapping[str, Hashable],
    *,
    most: int,
) -> list[Group]:
    """Group names until at most `most` groups are left, or nothing more folds.

    Args:
        names: in the order in which they run; groups keep it.
        edges: from name to name, without a cycle.
        place: what may be drawn in one box: members of a group have one place.
        look: equal looks may be counted ("12 times") instead of listed.
        most: the number of boxes that a picture bears; fewer names stay as they are.
    """
    state = _Folding(names, edges, place, look)
    steps: tuple[Callable[[], bool], ...] = (
        lambda: state.fold_rows(equal=True),
        lambda: state.fold_beside(equal=True),
        lambda: state.fold_rows(equal=False),
        lambda: state.fold_beside(equal=False),
    )
    for allowed in (2, 4):
        changed = True
        while changed and len(state.groups) > most:
            changed = any(step() for step in steps[:allowed])
    if len(state.groups) > 2 * most:
        _fold_by_depth(state)
    return [state.groups[vertex] for vertex in sorted(state.groups)]


def _fold_by_depth(state: _Folding) -> None:
    """Fold what is tangled into a grid: a row per place, a column per stretch."""
    depth: dict[int, int] = {}
    for vertex in sorted(state.groups):
        depth[vertex] = max(
            (depth.get(b, 0) + 1 for b in state.before[vertex]), default=0
        )
    deepest = max(depth.values(), default=0) + 1
    cells: dict[tuple[Hashable, int], list[int]] = {}
    for vertex in sorted(state.groups):
        column = depth[vertex] * _COLUMNS // deepest
        cells.setdefault((state.place[vertex], column), []).append(vertex)
    for (_, column), members in cells.items():
        if len(members) > 1:
            state.join(members, 0, "mixed")
        first = members[0]
        state.groups[first] = replace(state.groups[first], column=column + 1)
