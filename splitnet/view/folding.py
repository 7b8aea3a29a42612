"""Fold what repeats, so that a diagram of 300 branches stays readable.

Works on names and edges alone. Three things fold: a run on one device whose members
repeat ("block_0 … block_11 ×12"), equal members of one device that read from the same
parts and feed the same ("tower_0 … tower_74 ×75"), and modules that follow one another,
each on several devices ("mixed0_join … mixed5_join ×6"). If the picture is still too
large, names that begin alike share a box on each device ("encoder/layer_3/…"), or else
neighbours.
"""

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

__all__ = ["Fold", "fold"]

_LONGEST_RUN = 8  # members of a pattern that repeats on one place
_LONGEST_MODULE = 24
_WORD = re.compile(r"[/._]|(?<=\D)(?=\d)")
_LEAST_BEGINNINGS = 4
_MOST_ROWS = 12  # with more places there is one box on each


@dataclass(frozen=True, slots=True)
class Fold:
    """Members drawn as one box; `times` is how often the pattern repeats, 0 if unequal.

    `column` counts from 1 where parts were folded by depth, and is 0 elsewhere.
    """

    members: tuple[str, ...]
    times: int = 1
    column: int = 0

    @property
    def period(self) -> int:
        """How many members make one pattern; 0 if they are unequal."""
        return len(self.members) // self.times if self.times else 0


def fold(
    names: Sequence[str],
    edges: Iterable[tuple[str, str]],
    place: Mapping[str, Hashable],
    look: Mapping[str, Hashable],
    *,
    most: int,
) -> list[Fold]:
    """Fold names until at most `most` groups are left, or nothing more folds.

    Args:
        names: in the order in which they run; groups keep it.
        edges: from name to name, without a cycle.
        place: what may be drawn in one box: members of a group have one place.
        look: equal looks may be counted ("×12") instead of listed.
        most: how many boxes a picture can show; fewer names are not folded.
    """
    state = _Folding(names, edges, place, look)
    changed = True
    while changed and len(state.groups) > most:
        changed = state.fold_runs() or state.fold_siblings() or state.fold_modules()
    if len(state.groups) > most and not state.fold_by_name(most):
        state.fold_by_depth()
    return [state.groups[vertex] for vertex in sorted(state.groups)]


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
        self.groups = {i: Fold((name,)) for i, name in enumerate(names)}
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
        first, inside = members[0], set(members)
        names = tuple(n for m in members for n in self.groups[m].members)
        look = (way, times, tuple(self.look[m] for m in members[:_LONGEST_RUN]))
        for ends, back in ((self.after, self.before), (self.before, self.after)):
            outside = set().union(*(ends[m] for m in members)) - inside
            for other in outside:
                back[other] = (back[other] - inside) | {first}
            ends[first] = outside
        for member in members[1:]:
            for table in (self.groups, self.place, self.look, self.after, self.before):
                table.pop(member)
        self.groups[first] = Fold(names, times)
        self.look[first] = look

    def fold_siblings(self) -> bool:
        """Fold equal members of one place with the same neighbours."""
        classes: dict[Hashable, list[int]] = {}
        for vertex in sorted(self.groups):
            around = frozenset(self.before[vertex]), frozenset(self.after[vertex])
            key = self.place[vertex], self.look[vertex], *around
            classes.setdefault(key, []).append(vertex)
        found = [members for members in classes.values() if len(members) > 1]
        for members in found:
            self.join(members, len(members), "side by side")
        return bool(found)

    def fold_runs(self) -> bool:
        """Fold repeated patterns of chains in which each member feeds only the next."""
        changed = False
        for run in self._runs():
            looks, at = [self.look[vertex] for vertex in run], 0
            while at < len(run):
                period, times = _repetition(looks, at, _LONGEST_RUN)
                if times > 1:
                    self.join(run[at : at + period * times], times, "in a row")
                    changed = True
                at += period * times
        return changed

    def _runs(self) -> list[list[int]]:
        """Longest chains on one place in which each member feeds only the next."""
        follows: dict[int, int] = {}
        for vertex in sorted(self.groups):
            if len(self.after[vertex]) == 1:
                (target,) = self.after[vertex]
                alone = len(self.before[target]) == 1
                if alone and self.place[target] == self.place[vertex]:
                    follows[vertex] = target
        runs = []
        for vertex in sorted(set(follows) - set(follows.values())):
            run = [vertex]
            while run[-1] in follows:
                run.append(follows[run[-1]])
            runs.append(run)
        return runs

    def fold_modules(self) -> bool:
        """Fold equal modules that follow one another, each on several places.

        A module reads what the one before it gives, so members feed each other.
        """
        order = sorted(self.groups)
        number = {vertex: at for at, vertex in enumerate(order)}
        looks: list[Hashable] = []
        for vertex in order:
            reads = frozenset(number[vertex] - number[n] for n in self.before[vertex])
            looks.append((self.place[vertex], self.look[vertex], reads))
        for at in range(len(order)):
            period, times = _repetition(looks, at, _LONGEST_MODULE)
            if times > 1 and period > 1:
                for first in range(at, at + period):
                    members = order[first : at + period * times : period]
                    self.join(members, times, "in turn")
                return True
        return False

    def fold_by_name(self, most: int) -> bool:
        """Fold members of one place whose names begin with the same words.

        The most words that give at most `most` groups; refused if there are so few
        beginnings that the net's structure would be lost.
        """
        words = {v: _WORD.split(group.members[0]) for v, group in self.groups.items()}
        for count in range(max(map(len, words.values())) - 1, 0, -1):
            groups: dict[Hashable, list[int]] = {}
            for vertex in sorted(self.groups):
                key = self.place[vertex], tuple(words[vertex][:count])
                groups.setdefault(key, []).append(vertex)
            beginnings = {tuple(its[:count]) for its in words.values()}
            if len(groups) <= most and len(beginnings) >= _LEAST_BEGINNINGS:
                for members in groups.values():
                    if len(members) > 1:
                        same = len({self.look[m] for m in members}) == 1
                        self.join(members, len(members) if same else 0, "named")
                return True
        return False

    def fold_by_depth(self) -> None:
        """Fold into a grid: a row per place, a column per range of depths."""
        depth: dict[int, int] = {}
        for vertex in sorted(self.groups):
            above = (depth.get(other, 0) + 1 for other in self.before[vertex])
            depth[vertex] = max(above, default=0)
        deepest = max(depth.values(), default=0) + 1
        columns = 4 if len(set(self.place.values())) <= _MOST_ROWS else 1
        cells: dict[tuple[Hashable, int], list[int]] = {}
        for vertex in sorted(self.groups):
            column = depth[vertex] * columns // deepest
            cells.setdefault((self.place[vertex], column), []).append(vertex)
        for (_, column), members in cells.items():
            if len(members) > 1:
                same = len({self.look[m] for m in members}) == 1
                self.join(members, len(members) if same else 0, "mixed")
            first = members[0]
            self.groups[first] = replace(self.groups[first], column=column + 1)


def _repetition(looks: list[Hashable], at: int, longest: int) -> tuple[int, int]:
    """The pattern at a position that covers most: its length and how often it comes."""
    best = (1, 1)
    for period in range(1, min(longest, (len(looks) - at) // 2) + 1):
        pattern = looks[at : at + period]
        times = 1
        while looks[at + period * times : at + period * (times + 1)] == pattern:
            times += 1
        if times > 1 and period * times > best[0] * best[1]:
            best = (period, times)
    return best
