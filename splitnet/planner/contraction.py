"""Steps of larger units: what a search plays instead of every call."""

from collections.abc import Sequence

from splitnet.simulator.step import Net, Shared, Step
from splitnet.simulator.tables import Table

__all__ = ["contract"]

Ends = tuple[int, tuple[int, ...], tuple[int, ...]]


def contract(step: Step, unit_of: Sequence[int], names: Sequence[str]) -> Step | None:
    """Merge units that share a number, renumbered into an order that may run.

    Times and bytes add up; a merged unit starts when all its inputs are there, which a
    real device need not wait for, so its times are estimates for searching. None if the
    merged graph has a cycle. The unit of the result is the number itself, so numbers
    must already stand in an order in which they may run.
    """
    count = len(names)
    pairs = ((unit_of[n.source], unit_of[r]) for n in step.nets for r in n.readers)
    if any(a > b for a, b in pairs):
        return None

    def total(values: Sequence[int]) -> list[int]:
        sums = [0] * count
        for unit, value in zip(unit_of, values):
            sums[unit] += value
        return sums

    def seconds(table: Sequence[Sequence[float]]) -> Table:
        known: dict[int, list[float]] = {}
        for values in table:
            if id(values) not in known:
                sums = known[id(values)] = [0.0] * count
                for unit, value in zip(unit_of, values):
                    sums[unit] += value
        return [known[id(values)] for values in table]

    def largest(values: Sequence[int]) -> list[int]:
        tops = [0] * count
        for unit, value in zip(unit_of, values):
            tops[unit] = max(tops[unit], value)
        return tops

    def anywhere(flags: Sequence[bool]) -> list[bool]:
        return [value > 0 for value in total([int(flag) for flag in flags])]

    def units(members: Sequence[int], but: int = -1) -> tuple[int, ...]:
        return tuple(dict.fromkeys(u for m in members if (u := unit_of[m]) != but))

    def rows(one: Shared) -> tuple[int, ...]:
        sent: dict[int, list[int]] = {}
        for user, count in zip(one.backward, one.rows):
            sent.setdefault(unit_of[user], []).append(count)
        return tuple(sum(counts) if all(counts) else 0 for counts in sent.values())

    merged: dict[Ends, tuple[int, float | None]] = {}
    for net in step.nets:
        source = unit_of[net.source]
        readers = units(net.readers, source)
        if readers:
            key = (source, readers, units(net.backward, source))
            size, known = merged.get(key, (0, None))
            if net.seconds is not None:
                known = (known or 0.0) + net.seconds
            merged[key] = (size + net.bytes, known)
    return Step(
        names=tuple(names),
        forward=seconds(step.forward),
        backward=seconds(step.backward),
        update=seconds(step.update),
        has_backward=anywhere(step.has_backward),
        has_update=anywhere(step.has_update),
        explicit_backward=anywhere(step.explicit_backward),
        nets=tuple(
            Net(source, readers, size, back, known)
            for (source, readers, back), (size, known) in merged.items()
        ),
        shared=tuple(
            Shared(s.name, s.bytes, units(s.users), units(s.backward), rows(s))
            for s in step.shared
            if len(units(s.users)) > 1
        ),
        own_bytes=total(step.own_bytes),
        own_trained=total(step.own_trained),
        output_bytes=largest(step.output_bytes),
        activation_bytes=total(step.activation_bytes),
        kept_bytes=total(step.kept_bytes),
        workspace_bytes=largest(step.workspace_bytes),
        latency=step.latency,
        gap=step.gap,
        seconds_per_byte=step.seconds_per_byte,
        busy_share=step.busy_share,
        crowds=step.crowds,
        start=step.start,
        slot_copies=step.slot_copies,
        training=step.training,
        deep_first=step.deep_first,
    )
