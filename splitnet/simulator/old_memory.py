"""What each device holds during a step: intervals of bytes, added up over time.

Five kinds of bytes come and go as the step runs; weights and optimizer slots stay:

    weights       at home, for ever
    slots         beside trained weights, for ever
    gradients     from the backward pass of the weight's owner to the end of the step
    activations   an output while somebody reads it, and what backward needs of it
    transfers     what came from another device, while it is read
    workspace     what a call or an update needs while it runs, gradients on their way
                  back, and on a worker's processor what its process needs to run calls
                  at all, the network's copy of what arrives, and what its allocators
                  hold beyond the tensors of the fullest moment

A device's `Memory` has all weights, slots and gradients, and the last three kinds as
they are when their sum is largest. So its total is never less than the peak over time.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from splitnet.core.plan import Memory
from splitnet.simulator.engine import Run
from splitnet.simulator.process import (
    messages,
    peak_bytes,
    resident_bytes,
    running_bytes,
)
from splitnet.simulator.step import Step

__all__ = ["memory_of", "standing_bytes"]

_WEIGHTS, _GRADIENTS, _SLOTS, _ACTIVATIONS, _TRANSFERS, _WORKSPACE = range(6)

Interval = tuple[int, int, float, float, int]
"""Device, kind, seconds from and to, bytes."""

_MOST_PIECES = 64  # tensors that a unit is thought to keep, each by itself

Curve = tuple[tuple[float, int], ...]


def standing_bytes(step: Step, device: Sequence[int]) -> list[int]:
    """What each device holds whatever the schedule: a lower bound, cheap to get.

    Weights, slots, gradients, and in training what is kept for backward at once.
    """
    held = [0] * step.device_count
    per_trained = 1 + step.slot_copies if step.training else 0
    for unit, where in enumerate(device):
        held[where] += (
            step.own_bytes[unit]
            + per_trained * step.own_trained[unit]
            + step.kept_bytes[unit]
        )
    return held


def memory_of(
    step: Step, device: Sequence[int], run: Run
) -> tuple[list[Memory], list[Curve]]:
    """The fullest moment of each device, and its bytes in use over time.

    O((units + edges) log units).
    """
    import numpy as np

    until = _until(step, device, run)
    tensors = [
        *_weights(step, device, run),
        *_activations(step, device, run, until),
        *_received(step, device, run, until),
        *_workspace(step, device, run),
    ]
    intervals = [*tensors, *_process(step, device, run, tensors)]
    real = [i for i in intervals if i[4] > 0 and i[3] > i[2]]
    where = np.array([i[0] for i in real], dtype=np.int64)
    kind = np.array([i[1] for i in real], dtype=np.int64)
    times = np.array([i[2] for i in real] + [i[3] for i in real], dtype=np.float64)
    size = np.array([i[4] for i in real], dtype=np.int64)
    where, kind = np.concatenate([where, where]), np.concatenate([kind, kind])
    change = np.concatenate([size, -size])
    memories: list[Memory] = []
    curves: list[Curve] = []
    for number in range(step.device_count):
        here = where == number
        curve = [_curve(times, change, here & (kind == k)) for k in range(6)]
        passing = _curve(times, change, here & (kind >= _ACTIVATIONS))
        fullest = max(passing, key=lambda point: point[1], default=(0.0, 0))[0]
        stay = [max((b for _, b in one), default=0) for one in curve[:_ACTIVATIONS]]
        memories.append(Memory(*stay, *(_at(one, fullest) for one in curve[3:])))
        curves.append(_curve(times, change, here))
    return memories, curves


def _at(curve: Curve, moment: float) -> int:
    """The bytes of a curve at a moment."""
    index = bisect_right(curve, moment, key=lambda point: point[0])
    return curve[index - 1][1] if index else 0


def _curve(times: object, change: object, chosen: object) -> Curve:
    """Bytes after each moment at which they change; frees come before new bytes."""
    import numpy as np

    moments = np.asarray(times)[np.asarray(chosen)]
    steps = np.asarray(change)[np.asarray(chosen)]
    if not moments.size:
        return ()
    order = np.argsort(moments, kind="stable")
    moments, held = moments[order], np.cumsum(steps[order])
    last = np.append(moments[1:] != moments[:-1], True)
    return tuple(zip(moments[last].tolist(), held[last].tolist()))


def _weights(step: Step, device: Sequence[int], run: Run) -> list[Interval]:
    """Weights, slots and gradients of every owner, and gradients made elsewhere."""
    n, end = step.count, run.seconds
    found: list[Interval] = []
    for unit, where in enumerate(device):
        found.append((where, _WEIGHTS, 0.0, end, step.own_bytes[unit]))
        trained = step.own_trained[unit]
        if trained:
            found.append((where, _SLOTS, 0.0, end, trained * step.slot_copies))
            born = run.start[n + unit if run.ran[n + unit] else 2 * n + unit]
            found.append((where, _GRADIENTS, born, end, trained))
    return found


def _activations(
    step: Step, device: Sequence[int], run: Run, until: Sequence[Mapping[int, float]]
) -> list[Interval]:
    """What units made: outputs while they are read, what backward needs until then."""
    n = step.count
    read = list(run.stop[:n])
    for net, needed in zip(step.nets, until):
        read[net.source] = max(read[net.source], needed.get(device[net.source], 0.0))
    found: list[Interval] = []
    for unit, where in enumerate(device):
        start, keeps = run.start[unit], step.keeps[unit]
        gone = run.stop[n + unit] if run.ran[n + unit] else start
        last = max(read[unit], gone)
        output = 0 if keeps.view else step.output_bytes[unit]
        kept = min(keeps.output, output)
        found += _pieces(where, start, gone, keeps.inner, step.output_bytes[unit])
        found.append((where, _ACTIVATIONS, start, last, kept))
        found.append((where, _ACTIVATIONS, start, read[unit], output - kept))
    return found


def _pieces(
    where: int, start: float, stop: float, size: int, output: int
) -> list[Interval]:
    """What a unit keeps within, as tensors of its output's size and one for the rest.

    Calls that run as one keep many, which an allocator finds room for one by one.
    """
    whole, rest = divmod(size, output) if output else (0, size)
    if whole > _MOST_PIECES:
        whole, rest, output = 1, 0, size
    found = [(where, _ACTIVATIONS, start, stop, output)] * whole
    return [*found, (where, _ACTIVATIONS, start, stop, rest)]


def _until(
    step: Step, device: Sequence[int], run: Run
) -> Sequence[Mapping[int, float]]:
    """For each net, until when its bytes are needed on each device that has them.

    By its readers there, forward and, if they keep it, backward; by copies that leave;
    and by whoever reads a view of it.
    """
    n = step.count
    until: list[dict[int, float]] = [{} for _ in step.nets]

    def need(number: int, where: int, time: float) -> None:
        until[number][where] = max(until[number].get(where, 0.0), time)

    for copy in run.copies:
        if copy.kind == 0:
            need(copy.item, copy.source, copy.stop)
    # From the end on, so that what becomes of a view is known when its input is asked.
    viewed: dict[int, float] = {}
    order = sorted(range(len(step.nets)), key=lambda i: -step.nets[i].source)
    for number in order:
        net = step.nets[number]
        for reader in net.readers:
            need(number, device[reader], run.stop[reader])
            if reader in viewed:
                need(number, device[reader], viewed[reader])
        for reader in net.kept:
            need(number, device[reader], run.stop[n + reader])
        home = until[number].get(device[net.source], 0.0)
        if step.keeps[net.source].view:
            viewed[net.source] = max(viewed.get(net.source, 0.0), home)
    return until


def _received(
    step: Step, device: Sequence[int], run: Run, until: Sequence[Mapping[int, float]]
) -> list[Interval]:
    """What came over a link, until nobody on that device needs it."""
    n = step.count
    found: list[Interval] = []
    for copy in run.copies:
        if copy.kind == 0:
            gone = until[copy.item][copy.target]
        elif copy.kind == 1:
            gone = run.stop[n + step.nets[copy.item].source]
        elif copy.kind == 2:
            one = step.shared[copy.item]
            users = (*one.users, *(n + u for u in one.backward))
            gone = max(run.stop[u] for u in users if device[u % n] == copy.target)
        else:
            gone = run.stop[2 * n + step.shared[copy.item].users[0]]
            first = min(
                run.start[n + user]
                for user in step.shared[copy.item].backward
                if device[user] == copy.source
            )
            found.append((copy.source, _TRANSFERS, first, copy.stop, copy.bytes))
        found.append((copy.target, _TRANSFERS, copy.start, gone, copy.bytes))
    return found


def _workspace(step: Step, device: Sequence[int], run: Run) -> list[Interval]:
    """Transients of calls and updates, and gradients until their maker used them.

    The gradients that a call makes take the place of its transients. An update makes a
    temporary of its weight's size for each slot, and one at least.
    """
    n = step.count
    found: list[Interval] = []
    sent = {(c.item, c.source): c.stop for c in run.copies if c.kind == 1}
    made = [0] * n
    for number, net in enumerate(step.nets):
        for where, first in _first_backward(net.backward, device, run, n).items():
            made[first] += net.bytes
            gone = sent.get((number, where), run.stop[n + net.source])
            born = run.start[n + first]
            found.append((where, _WORKSPACE, born, gone, net.bytes))
    for unit, where in enumerate(device):
        size = step.workspace_bytes[unit]
        for task, rest in ((unit, size), (n + unit, size - made[unit])):
            if run.ran[task]:
                times = run.start[task], run.stop[task]
                found.append((where, _WORKSPACE, *times, rest))
        update = 2 * n + unit
        if run.ran[update]:
            size = step.own_trained[unit] * max(1, step.slot_copies)
            times = run.start[update], run.stop[update]
            found.append((where, _WORKSPACE, *times, size))
    return found


def _process(
    step: Step, device: Sequence[int], run: Run, tensors: Sequence[Interval]
) -> list[Interval]:
    """What workers need besides tensors, and hold beyond their fullest moment."""
    found: list[Interval] = []
    for where, worker in enumerate(step.deep_first):
        if not worker:
            continue
        beside = [
            (0.0, run.seconds, running_bytes(step, device, where)),
            *messages(step, run, where),
        ]
        here = [i for i in tensors if i[0] == where and i[4] > 0 and i[3] > i[2]]
        stay = sum(i[4] for i in here if i[1] < _ACTIVATIONS)
        passing = [i[2:] for i in here if i[1] >= _ACTIVATIONS]
        fullest = stay + peak_bytes([*passing, *beside])
        more = resident_bytes([i[2:] for i in here], beside) - fullest
        beside.append((0.0, run.seconds, more))
        found += [(where, _WORKSPACE, *held) for held in beside]
    return found


def _first_backward(
    readers: Sequence[int], device: Sequence[int], run: Run, n: int
) -> dict[int, int]:
    """On each device the reader that goes back first."""
    first: dict[int, int] = {}
    for reader in readers:
        other = first.setdefault(device[reader], reader)
        if run.start[n + reader] < run.start[n + other]:
            first[device[reader]] = reader
    return first
