"""Devices that could change names: what holds for one holds for the other."""

from collections.abc import Sequence

from splitnet.simulator.step import Step

__all__ = ["twins"]


def twins(
    step: Step, capacity: Sequence[float], allowed: Sequence[Sequence[int]]
) -> tuple[int, ...]:
    """For each device the first that it could change names with, itself if none.

    Twins cost the same, hold the same, begin at the same time, have the same roads and
    neighbours on their processors, and every group may use both or neither.

    Args:
        step: The step's times and roads.
        capacity: Bytes of each device.
        allowed: The devices of each group.
    """
    count = len(capacity)
    crowding = [[0.0] * count for _ in range(count)]
    for device, row in enumerate(step.crowds):
        for other, share in row:
            crowding[device][other] = share
    roads = [step.latency, step.gap, step.seconds_per_byte, step.busy_share]
    sets = list(dict.fromkeys(frozenset(devices) for devices in allowed))
    first: list[int] = []
    for b in range(count):
        twin = b
        for a in dict.fromkeys(first):
            if (
                capacity[a] == capacity[b]
                and _alike(step, a, b)
                and all((a in devices) == (b in devices) for devices in sets)
                and all(_swap(table, a, b) for table in (*roads, crowding))
            ):
                twin = a
                break
        first.append(twin)
    return tuple(first)


def _alike(step: Step, a: int, b: int) -> bool:
    """Whether two devices compute alike."""
    deep = step.deep_first
    return (
        step.forward[a] is step.forward[b]
        and step.start[a] == step.start[b]
        and (not deep or deep[a] == deep[b])
    )


def _swap(table: Sequence[Sequence[float]], a: int, b: int) -> bool:
    """Whether a table of roads stays the same if two devices change names."""
    others = [d for d in range(len(table)) if d not in (a, b)]
    return (
        table[a][b] == table[b][a]
        and all(table[a][d] == table[b][d] for d in others)
        and all(table[d][a] == table[d][b] for d in others)
    )
