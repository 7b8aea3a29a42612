"""What each device holds during a step: intervals of bytes, added up over time.

Five kinds of bytes come and go as the step runs; weights and optimizer slots stay:

    weights       at home, for ever
    slots         beside trained weights, for ever
    gradients     from the backward pass of the weight's owner to the end of the step
    activations   an output while somebody reads it, and what backward needs of it
    transfers     what came from another device, while it is read
    workspace     what a call or an update needs while it runs, gradients on their way
                  back, and on a worker's processor what its process needs to run calls
                  at all and the network's copy of what arrives

A device's `Memory` takes each kind at its own fullest, so its total is never less than
the peak of the sum: an allocator that keeps what it once had needs that much.
"""

from collections.abc import Mapping, Sequence

from splitnet.core.engine import Run
from splitnet.core.plan import Memory
from splitnet.core.step import Step

__all__ = ["memory_of", "standing_bytes"]

_WEIGHTS, _GRADIENTS, _SLOTS, _ACTIVATIONS, _TRANSFERS, _WORKSPACE = range(6)

Interval = tuple[int, int, float, float, int]
"""Device, kind, seconds from and to, bytes."""

# Measured on CPU workers beside their tensors: kernels and the code they generate,
# graphs, executors; per call and altogether.
_CALL_BYTES, _PROCESS_BYTES = 300_000, 8_000_000

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

    intervals = [
        *_weights(step, device, run),
        *_activations(step, device, run),
        *_received(step, device, run),
        *_workspace(step, device, run),
        *_process(step, device, run),
    ]
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
        tops = [
            max((b for _, b in _curve(times, change, here & (kind == k))), default=0)
            for k in range(6)
        ]
        memories.append(Memory(*tops))
        curves.append(_curve(times, change, here))
    return memories, curves


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


def _activations(step: Step, device: Sequence[int], run: Run) -> list[Interval]:
    """An output until its last reader or copy is done, then what backward needs."""
    n = step.count
    needed = [run.stop[unit] for unit in range(n)]
    for net in step.nets:
        here = device[net.source]
        for reader in net.readers:
            if device[reader] == here:
                needed[net.source] = max(needed[net.source], run.stop[reader])
    for copy in run.copies:
        if copy.kind == 0:
            source = step.nets[copy.item].source
            needed[source] = max(needed[source], copy.stop)
    found: list[Interval] = []
    for unit, where in enumerate(device):
        start, read = run.start[unit], needed[unit]
        kept = step.activation_bytes[unit]
        if run.ran[n + unit]:
            gone = run.stop[n + unit]
            found.append((where, _ACTIVATIONS, start, gone, kept))
        excess = max(0, step.output_bytes[unit] - kept)
        found.append((where, _ACTIVATIONS, start, read, excess))
    return found


def _received(step: Step, device: Sequence[int], run: Run) -> list[Interval]:
    """What came over a link, until nobody on that device needs it."""
    n = step.count
    found: list[Interval] = []
    for copy in run.copies:
        if copy.kind == 0:
            net = step.nets[copy.item]
            gone = _last_use(net.readers, net.backward, copy.target, device, run, n)
        elif copy.kind == 1:
            gone = run.stop[n + step.nets[copy.item].source]
        elif copy.kind == 2:
            one = step.shared[copy.item]
            gone = _last_use(one.users, one.backward, copy.target, device, run, n)
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


def _last_use(
    readers: Sequence[int],
    backward: Sequence[int],
    target: int,
    device: Sequence[int],
    run: Run,
    n: int,
) -> float:
    uses = [run.stop[r] for r in readers if device[r] == target]
    uses += [run.stop[n + r] for r in backward if device[r] == target]
    return max(uses, default=0.0)


def _workspace(step: Step, device: Sequence[int], run: Run) -> list[Interval]:
    """Transients of calls and updates, and gradients until their maker used them.

    An update makes a temporary of its weight's size for each slot, and one at least.
    """
    n = step.count
    found: list[Interval] = []
    for unit, where in enumerate(device):
        for task in (unit, n + unit):
            if run.ran[task]:
                size = step.workspace_bytes[unit]
                found.append((where, _WORKSPACE, run.start[task], run.stop[task], size))
        update = 2 * n + unit
        if run.ran[update]:
            size = step.own_trained[unit] * max(1, step.slot_copies)
            times = run.start[update], run.stop[update]
            found.append((where, _WORKSPACE, *times, size))
    sent = {(c.item, c.source): c.stop for c in run.copies if c.kind == 1}
    for number, net in enumerate(step.nets):
        born: Mapping[int, float] = _first_backward(net.backward, device, run, n)
        for where, start in born.items():
            gone = sent.get((number, where), run.stop[n + net.source])
            found.append((where, _WORKSPACE, start, gone, net.bytes))
    return found


def _process(step: Step, device: Sequence[int], run: Run) -> list[Interval]:
    """What a worker's process needs besides tensors, on the processors of workers.

    A message is whole before its tensor is made from it, so it is there twice.
    """
    found: list[Interval] = []
    for where, worker in enumerate(step.deep_first):
        calls = sum(1 for one in device if one == where)
        if worker and calls:
            size = _PROCESS_BYTES + calls * _CALL_BYTES
            found.append((where, _WORKSPACE, 0.0, run.seconds, size))
    for copy in run.copies:
        if step.deep_first and step.deep_first[copy.target]:
            times = copy.start, copy.stop
            found.append((copy.target, _WORKSPACE, *times, copy.bytes))
    return found


def _first_backward(
    readers: Sequence[int], device: Sequence[int], run: Run, n: int
) -> dict[int, float]:
    born: dict[int, float] = {}
    for reader in readers:
        where, start = device[reader], run.start[n + reader]
        born[where] = min(born.get(where, start), start)
    return born
