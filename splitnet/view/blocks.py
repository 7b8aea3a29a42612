"""Parts as a tree of blocks: what repeats, what is named alike, what follows.

    encoder ×6                      equal blocks in a row
    └─ encoder/layer_0              parts whose names begin alike
       ├─ attention
       └─ dense_0 … dense_11        ranges, where there are many children

Diagrams show a cut through the tree; the report opens and closes its blocks.
"""

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

__all__ = ["Block", "block_of", "fold"]

_WORD = re.compile(r"[/._]|(?<=\D)(?=\d)")
_LONGEST_PATTERN = 8
_MOST_CHILDREN, _RANGES = 12, 6


@dataclass(frozen=True, slots=True)
class Block:
    """Parts in running order; `times` is how often a pattern repeats, 0 if unlike."""

    members: tuple[str, ...]
    children: tuple["Block", ...] = ()
    times: int = 1

    @property
    def period(self) -> int:
        """How many members make one pattern; 0 if they are unequal."""
        return len(self.members) // self.times if self.times else 0


def block_of(names: Sequence[str], look: Mapping[str, Hashable]) -> Block:
    """The tree of some parts of one device.

    Args:
        names: at least one, in running order.
        look: equal looks may be counted ("×12") instead of listed.
    """
    return _named([(name, _WORD.split(name)) for name in names], look)


def fold(
    names: Sequence[str],
    place: Mapping[str, Hashable],
    look: Mapping[str, Hashable],
    *,
    most: int,
) -> list[Block]:
    """Show names as blocks, about `most` at most, in running order.

    A tree per place is opened from the top: large blocks of unlike parts first, then
    repeats, together if they are equally long.
    """
    places: dict[Hashable, list[str]] = {}
    for name in names:
        places.setdefault(place[name], []).append(name)
    shown = [block_of(its, look) for its in places.values()]
    if len(names) <= most:
        shown = [Block((name,)) for name in names]
    closed: list[Block] = []
    while openable := [block for block in shown if _worth_opening(block)]:
        first = min(openable, key=lambda block: (block.times > 1, -len(block.members)))
        alike = [
            block
            for block in openable
            if block is first or _together(block, first, place)
        ]
        shown = [block for block in shown if block not in alike]
        opened = [child for block in alike for child in block.children]
        fits = len(shown) + len(closed) + len(opened) <= most
        (shown if fits else closed).extend(opened if fits else alike)
    number = {name: at for at, name in enumerate(names)}
    return sorted((*shown, *closed), key=lambda block: number[block.members[0]])


def _together(one: Block, other: Block, place: Mapping[str, Hashable]) -> bool:
    """Whether two blocks repeat as often: on two devices, or equal patterns on one."""
    apart = place[one.members[0]] != place[other.members[0]]
    alike = apart or one.period == other.period
    return one.times == other.times > 1 and alike


def _worth_opening(block: Block) -> bool:
    """Whether it has children that say more than their number."""
    ranges = block.times > 1 and block.times != len(block.children)
    return bool(block.children) and not ranges


def _named(parts: list[tuple[str, list[str]]], look: Mapping[str, Hashable]) -> Block:
    """Neighbours whose names begin with the same words are a block."""
    if len(parts) == 1:
        return Block((parts[0][0],))
    for count in range(1, max(len(words) for _, words in parts) + 1):
        groups = [
            list(group) for _, group in groupby(parts, key=lambda one: one[1][:count])
        ]
        if len(groups) > 1:
            break
    if len(groups) == len(parts):
        children = [Block((name,)) for name, _ in parts]
    else:
        children = [_named(group, look) for group in groups]
    return _joined(_repeats(children, look), look)


def _repeats(children: list[Block], look: Mapping[str, Hashable]) -> list[Block]:
    """Join what repeats, pattern by pattern."""
    looks = [_look_of(child, look) for child in children]
    found: list[Block] = []
    at = 0
    while at < len(children):
        period, times = _repetition(looks, at)
        stop = at + period * times
        if times == 1:
            found.append(children[at])
        elif period == 1:
            found.append(_joined(children[at:stop], look, times))
        else:
            starts = range(at, stop, period)
            patterns = [_joined(children[n : n + period], look) for n in starts]
            found.append(_joined(patterns, look, times))
        at = stop
    return found


def _joined(
    children: Iterable[Block], look: Mapping[str, Hashable], times: int = 0
) -> Block:
    """A block of several, in ranges if there are many; one stays as it is."""
    its = list(children)
    if len(its) == 1:
        return its[0]
    members = tuple(name for child in its for name in child.members)
    if len(its) > _MOST_CHILDREN:
        ends = [len(its) * n // _RANGES for n in range(_RANGES + 1)]
        ranges = [its[a:b] for a, b in zip(ends, ends[1:], strict=False)]
        its = [_joined(some, look, len(some) if times else 0) for some in ranges]
    return Block(members, tuple(its), times)


def _look_of(block: Block, look: Mapping[str, Hashable]) -> Hashable:
    """What two blocks have in common if they are equal."""
    return block.times, tuple(look[name] for name in block.members)


def _repetition(looks: Sequence[Hashable], at: int) -> tuple[int, int]:
    """The pattern at a position that covers most: its length and how often it comes."""
    best = (1, 1)
    for period in range(1, min(_LONGEST_PATTERN, (len(looks) - at) // 2) + 1):
        pattern = looks[at : at + period]
        times = 1
        while looks[at + period * times : at + period * (times + 1)] == pattern:
            times += 1
        if times > 1 and period * times > best[0] * best[1]:
            best = (period, times)
    return best
