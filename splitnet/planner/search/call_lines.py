"""Graphs of very many groups, with lines of groups merged for the beam of calls.

    a -> b -> c -> d -> e        b, c, d hear from one group each, and e from two:
              |         ^        a+b and c+d, or a+b+c+d, are one group for the beam
              +-> x ----+

What is merged hears from others at its first group only, so whom it hears from by way
of others stays as it was, and the rule that cuts calls finds the same ones.
"""

from math import inf

from splitnet.planner.search.contract import contract
from splitnet.planner.search.orders import ancestry, depth_first
from splitnet.planner.search.problem import Problem

__all__ = ["merge_lines"]

LEAST_LINES = 50  # that fill an accelerator


def merge_lines(problem: Problem, target: int) -> tuple[Problem, list[int]]:
    """Merge groups in a row into lines of about equal work; about `target` are left.

    More are left where few groups are in rows. A group goes to the line that ends with
    the only one that it hears from, unless that one has another such follower: branches
    stay apart. O(groups + edges).
    """
    before, after = ancestry(problem)
    count, devices = problem.group_count, problem.devices
    seconds = []
    for row, allowed in zip(problem.seconds, problem.allowed, strict=True):
        own = [row[devices[d].kind] for d in allowed if not devices[d].pooled]
        seconds.append(min(own, default=0.0))
    sizes = [d.capacity_bytes for d in devices if not d.pooled]
    most = 2 * sum(seconds) / max(1, target)
    room = min(sizes, default=inf) / LEAST_LINES
    line = [-1] * count
    end: list[int] = []
    work: list[float] = []
    used: list[float] = []
    for group in depth_first(problem):
        size = problem.size_bytes[group]
        ahead = before[group][0] if len(before[group]) == 1 else -1
        if ahead >= 0 and problem.allowed[ahead] == problem.allowed[group]:
            index = line[ahead]
            follow = [other for other in after[ahead] if len(before[other]) == 1]
            if (
                end[index] == ahead
                and len(follow) == 1
                and work[index] + seconds[group] <= most
                and used[index] + size <= room
            ):
                line[group], end[index] = index, group
                work[index] += seconds[group]
                used[index] += size
                continue
        line[group] = len(end)
        end.append(group)
        work.append(seconds[group])
        used.append(size)
    return contract(problem, line), line
