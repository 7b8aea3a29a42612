"""Profile a step: the timeline of its parts as they ran, by TensorFlow's profiler.

The profiler names every op that ran, when it started and how long it took. Ops of a
part carry the part's scope. A function that several calls share, as towers and
micro-batches do, shows each of its ops once per call: the n-th of them, in the order of
their starts, belongs to the n-th call.
"""

import re
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Annotated, Any

import keras
import tensorflow as tf
from msgspec import Meta

from splitnet.core.errors import AuditError, DeviceError, listed
from splitnet.core.plan import Plan
from splitnet.core.timeline import Task, Timeline
from splitnet.tf.audit.observe import state_restored, train_step, unpacked
from splitnet.tf.audit.partition_graphs import Names, works
from splitnet.tf.emit import plan_of
from splitnet.tf.placement.device_function import (
    function_of,
    key_in,
    key_of_function,
    update_target,
)
from splitnet.tf.placement.placed import Placed, placed_of

_GRADIENT = re.compile(r"gradient_tape/|^gradients/")  # in a step, in a function
Calls = Mapping[tuple[str, str], Sequence[str]]
"""(key that a function was traced with, phase) -> keys of its calls, in order."""


def profile_step(
    model: keras.Model,
    batch: Any,
    *,
    steps: Annotated[int, Meta(ge=1, le=1000)] = 3,
) -> Timeline:
    """Run training steps and return the shortest as a measured timeline.

    The steps are those of `fit`. Weights, optimizer state, metrics and random states
    are put back afterwards. `draw(plan.timeline, path, other=...)`,
    `report(plan, path, measured=...)` and `trace(plan, path, measured=...)` show the
    timeline beside the planned one.

    Args:
        model: an emitted and compiled model, all of it in this program.
        batch: one batch as `fit` takes it: `(x, y)` or `(x, y, sample_weight)`.
        steps: how many steps to run and choose from, after one that is not counted.

    Returns:
        Tasks in seconds since the first op of a part began. What is no part's, such as
        the loss, is not in it; nor are copies and memory, which the profiler does not
        show for the processor.

    Raises:
        PlanFileError: the model was not emitted by splitnet.
        DeviceError: a device of the plan is in another program.
        AuditError: the model is not compiled, or nothing was seen.
    """
    plan = plan_of(model)
    inputs, targets, weights = unpacked(batch)
    if not model.compiled or targets is None:
        raise AuditError(
            f"profile_step() runs training steps of model {model.name!r}: compile it, "
            "and give a batch with targets, such as (x[:32], y[:32])."
        )
    if away := [f"{d.name} ({d.target})" for d in plan.cluster if d.host]:
        raise DeviceError(
            listed(
                "a profiler sees the ops of its own program only. Use sn.measure(...) "
                "for devices of workers.",
                away,
            )
        )
    profiles = []
    with state_restored(model, training=True):
        train_step(model, inputs, targets, weights)
        for _ in range(steps):
            profiles.append(_profile(model, inputs, targets, weights))
    placed = placed_of(model)
    assert placed is not None
    names = Names(plan, placed, model.optimizer)
    calls = _calls([graph for ref in placed.graphs if (graph := ref()) is not None])
    found = (_timeline_of(spaces, plan, placed, names, calls) for spaces in profiles)
    best = min(found, key=lambda timeline: timeline.seconds)
    if not best.tasks:
        raise AuditError(
            f"TensorFlow's profiler saw no op of model {plan.graph.name!r}. With "
            "run_eagerly=True ops carry no names: compile without it."
        )
    return best


def _profile(model: keras.Model, *batch: Any) -> list[bytes]:
    """Run a training step under TensorFlow's profiler; the files that it writes."""
    options = tf.profiler.experimental.ProfilerOptions(host_tracer_level=3)
    with tempfile.TemporaryDirectory(prefix="splitnet-") as folder:
        with tf.profiler.experimental.Profile(folder, options):
            train_step(model, *batch)
        return [f.read_bytes() for f in sorted(Path(folder).rglob("*.xplane.pb"))]


@dataclass(frozen=True, slots=True)
class _Event:
    """One op that ran; seconds."""

    name: str
    kind: str
    on_gpu: bool
    start: float
    stop: float


@dataclass(frozen=True, slots=True)
class _Owner:
    """The part that an op belongs to, its device, and whether a call ran it."""

    part: str
    target: str
    phase: str
    microbatch: int
    of_call: bool


def _timeline_of(
    spaces: Iterable[bytes], plan: Plan, placed: Placed, names: Names, calls: Calls
) -> Timeline:
    """The timeline in a profile's files."""
    devices = {device.name: device for device in plan.cluster}
    by_op: dict[tuple[str, bool], list[_Event]] = defaultdict(list)
    for event in _events(spaces):
        if works(event.kind):
            by_op[event.name, event.on_gpu].append(event)
    ran: dict[str, list[tuple[float, float, _Owner]]] = {name: [] for name in devices}
    for (name, on_gpu), events in by_op.items():
        events.sort(key=lambda event: event.start)
        owners = _owners(name, len(events), placed, names, calls)
        for event, owner in zip(events, owners):
            device = devices.get(names.device(owner.target)) if owner.target else None
            # A GPU's kernels count, and not the calls that launch them.
            on_card = device and device.kind == "gpu" and not device.stand_in
            if device and owner.part and on_gpu == on_card:
                ran[device.name].append((event.start, event.stop, owner))
    begun = min((row[0] for rows in ran.values() for row in rows), default=0.0)
    tasks = [task for name, rows in ran.items() for task in _tasks(rows, name, begun)]
    return Timeline(tuple(tasks), (), tuple(devices), {})


def _owners(
    name: str, count: int, placed: Placed, names: Names, calls: Calls
) -> Iterator[_Owner]:
    """Whose an op is, for each time that it ran."""
    which, target = update_target(name)
    if target:
        owner = _Owner(names.updated_part(which), target, "update", 0, False)
        yield from [owner] * count
        return
    traced_as = key_in(name) or ""
    phase = "backward" if _GRADIENT.search(name) else "forward"
    known = calls.get((traced_as, phase))
    keys = known or [traced_as]
    for number in range(count):  # in a loop an op runs several times per call
        call = min(number * len(keys) // count, len(keys) - 1)
        key = keys[call]
        piece = keys[:call].count(key)
        part, target = names.part_called(key), placed.target_of.get(key, "")
        yield _Owner(part, target, phase, piece, bool(known))


def _calls(graphs: Sequence[Any]) -> Calls:
    """The calls of part functions in the training step that was traced last."""
    for graph in reversed(graphs):
        found: dict[tuple[str, str], list[str]] = defaultdict(list)
        for op in graph.get_operations():
            function = function_of(op)
            traced_as = key_of_function(function)
            if traced_as is None:
                continue
            phase = "backward" if "__backward_" in function else "forward"
            readers = (key_in(tensor.op.name) for tensor in op.inputs)
            key = key_in(op.name) or next(filter(None, readers), None) or traced_as
            found[traced_as, phase].append(key)
        if any(phase == "backward" for _, phase in found):
            return found
    return {}


def _events(spaces: Iterable[bytes]) -> Iterator[_Event]:
    """Every op of a part or an update in a profile; a GPU's kernel names its op."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    found = [xplane_pb2.XSpace.FromString(text) for text in spaces]
    for plane in [plane for space in found for plane in space.planes]:
        on_gpu = plane.name.startswith("/device:GPU")
        for line in plane.lines:
            for event in line.events:
                name = plane.event_metadata[event.metadata_id].name
                for stat in event.stats if on_gpu else ():
                    if plane.stat_metadata[stat.metadata_id].name == "tf_op":
                        reference = plane.stat_metadata[stat.ref_value].name
                        name = stat.str_value or reference or name
                start = line.timestamp_ns * 1e-9 + event.offset_ps * 1e-12
                op, _, kind = name.rpartition(":")
                if key_in(op):
                    stop = start + event.duration_ps * 1e-12
                    yield _Event(op, kind, on_gpu, start, stop)


def _tasks(
    rows: Sequence[tuple[float, float, _Owner]], device: str, begun: float
) -> Iterator[Task]:
    """The tasks of a device in their order; where two overlap, the earlier is cut.

    A call is one task, from its first op to its last. Other ops, such as updates, are
    one task as long as nothing of another part comes between them.
    """
    spans: dict[tuple[_Owner, int], tuple[float, float]] = {}
    last, number = None, 0
    for start, stop, owner in sorted(rows, key=lambda row: row[:2]):
        number += owner != last
        last = owner
        key = (owner, 0 if owner.of_call else number)
        first, end = spans.get(key, (start, stop))
        spans[key] = min(first, start), max(end, stop)
    ordered = sorted(spans.items(), key=lambda item: item[1])
    starts = [start for _, (start, _) in ordered[1:]]
    for ((owner, _), (start, stop)), after in zip(ordered, [*starts, inf]):
        if min(stop, after) > start:
            part, phase = owner.part, owner.phase
            start, stop = start - begun, min(stop, after) - begun
            yield Task(part, device, phase, start, stop, owner.microbatch)
