"""Functions: which calls run as one TensorFlow function.

What runs on one device without a hop between is one function, whichever parts it is of.
What a function saves for its backward pass is freed when that pass ends, so one of many
calls would hold everything to the end: a long run is cut at seams, where one tensor
passes. Emission cuts by this rule, and the simulator judges memory by it.
"""

from collections.abc import Iterator, Mapping, Sequence

__all__ = ["cut_run"]

_CALLS = 8
"""A function has this many calls before it is cut, and so does what is left."""


def cut_run(
    run: Sequence[int],
    reads: Mapping[int, Sequence[tuple[int, int]]],
    sizes: Mapping[int, int] | None = None,
) -> Iterator[Sequence[int]]:
    """A run of calls, or of units of calls, as one or several functions.

    Args:
        run: Numbers of what can run as one, in running order.
        reads: Per number, the (source, output) pairs that it reads.
        sizes: The calls of each; one if not given.

    >>> [len(one) for one in cut_run(range(20), {i: [(i - 1, 0)] for i in range(20)})]
    [8, 12]
    """
    calls = [1 if sizes is None else sizes[one] for one in run]
    made = dict.fromkeys(run, 0)  # tensors of each that are read in the run
    last: dict[tuple[int, int], int] = {}
    for i, one in enumerate(run):
        for tensor in reads.get(one, ()):
            if tensor[0] in made:
                made[tensor[0]] += tensor not in last
                last[tensor] = i
    ends = dict.fromkeys(range(len(run)), 0)
    for i in last.values():
        ends[i] += 1
    start = passing = done = 0
    left = sum(calls)
    for i, one in enumerate(run[:-1]):
        passing += made[one] - ends[i]
        done, left = done + calls[i], left - calls[i]
        if done >= _CALLS and left >= _CALLS and passing <= 1:
            yield run[start : i + 1]
            start, done = i + 1, 0
    yield run[start:]
