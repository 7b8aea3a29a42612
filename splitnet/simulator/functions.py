"""Functions: where a long run of calls of one part is cut into TensorFlow functions.

Emission cuts by this rule, and the simulator judges parts by it. What a function saves
for its backward pass is freed when that pass ends, so one function of many calls would
hold everything to the end. A run is cut at seams, where a single tensor passes; each
function costs some 10 us.
"""

from collections.abc import Iterator, Mapping, Sequence

__all__ = ["cut_calls"]

_CALLS = 8
"""A function has this many calls before it is cut, and so does what is left."""


def cut_calls(
    calls: Sequence[int], reads: Mapping[int, Sequence[tuple[int, int]]]
) -> Iterator[Sequence[int]]:
    """A run of calls as one or several, each a function. O(calls + tensors).

    Args:
        calls: Numbers of calls that can run as one, in running order.
        reads: Per call, the (source call, output) pairs that it reads.

    >>> [len(one) for one in cut_calls(range(20), {i: [(i - 1, 0)] for i in range(20)})]
    [8, 12]
    """
    mine = set(calls)
    last: dict[tuple[int, int], int] = {}  # where each tensor made here is last read
    for i, call in enumerate(calls):
        for tensor in reads.get(call, ()):
            if tensor[0] in mine:
                last[tensor] = i
    starts = dict.fromkeys(mine, 0)
    for source, _ in last:
        starts[source] += 1
    ends: dict[int, int] = {}
    for i in last.values():
        ends[i] = ends.get(i, 0) + 1
    start = passing = 0
    for i, call in enumerate(calls[:-1]):
        passing += starts[call] - ends.get(i, 0)
        if i + 1 - start >= _CALLS and passing <= 1 and len(calls) - i > _CALLS:
            yield calls[start : i + 1]
            start = i + 1
    yield calls[start:]
