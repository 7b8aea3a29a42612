"""Profile a step: the timeline of its parts as they ran, by TensorFlow's profiler.

The profiler names every op that ran, when and how long. Ops of a part carry its scope.
A function that several calls share, as towers and micro-batches do, shows each of its
ops once per call: the n-th of them, in the order of their starts, is the n-th call's.
"""

import re
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Annotated, Any

import keras
import tensorflow as tf
from msgspec import Meta

from splitnet.core.errors import AuditError, DeviceError
from splitnet.core.plan import Plan
from splitnet.core.timeline import Task, Timeline
from splitnet.tf.audit import observe
from splitnet.tf.audit.partition_graphs import IDLE, Names, call_of
from splitnet.tf.emit import plan_of
from splitnet.tf.placement.device_function import function_of, key_in
from splitnet.tf.placement.placed import placed_of

_GRADIENT = re.compile(r"gradient_tape/|^gradients/")  # in a step, in a function
_Calls = Mapping[tuple[str, str], Sequence[str]]
"""(key that a function was traced with, phase) -> keys of its calls, in order."""
_Span = tuple[float, float]  # seconds at the start and at the end


def profile_step(
    model: keras.Model, batch: Any, *, steps: Annotated[int, Meta(ge=1, le=1000)] = 3
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
    inputs, targets, weights = observe.unpacked(batch)
    if not observe.trains(model, inputs, targets):
        what = f"profile_step() runs training steps of model {model.name!r}"
        how = "compile it, and give a batch with targets, such as (x[:32], y[:32])"
        raise AuditError(f"{what}: {how}.")
    if away := [f"{d.name} ({d.target})" for d in plan.cluster if d.host]:
        why = "a profiler sees the ops of its own program only"
        raise DeviceError(f"{why}. Use sn.measure(...) for devices of workers.", away)
    with observe.state_restored(model, training=True):
        observe.train_step(model, inputs, targets, weights)
        profiles = [_profile(model, inputs, targets, weights) for _ in range(steps)]
    placed = placed_of(model)
    names, calls = Names(plan, placed, model.optimizer), _calls(list(placed.graphs))
    found = (_timeline(spaces, plan, names, calls) for spaces in profiles)
    best = min(found, key=lambda timeline: timeline.seconds)
    if not best.tasks:
        why = "With run_eagerly=True ops carry no names: compile without it."
        raise AuditError(f"the profiler saw no op of model {plan.graph.name!r}. {why}")
    return best


def _profile(model: keras.Model, *batch: Any) -> list[bytes]:
    """Run a training step under TensorFlow's profiler; the files that it writes."""
    options = tf.profiler.experimental.ProfilerOptions(host_tracer_level=3)
    with tempfile.TemporaryDirectory(prefix="splitnet-") as folder:
        with tf.profiler.experimental.Profile(folder, options):
            observe.train_step(model, *batch)
        return [f.read_bytes() for f in sorted(Path(folder).rglob("*.xplane.pb"))]


def _timeline(spaces: list[bytes], plan: Plan, names: Names, calls: _Calls) -> Timeline:
    """Each pass of a part, from its first op to its last; overlaps are cut off."""
    runs_of: dict[tuple[str, bool], list[_Span]] = defaultdict(list)
    for op, on_gpu, span in _events(spaces):
        runs_of[op, on_gpu].append(span)
    # A GPU's kernels count, and not the calls that launch them.
    real = {d.name: d.kind == "gpu" and not d.stand_in for d in plan.cluster}
    spans: dict[Task, _Span] = {}
    for (op, on_gpu), runs in runs_of.items():
        for span, task in zip(sorted(runs), _tasks(op, len(runs), names, calls)):
            if task.part and real.get(task.device) == on_gpu:
                starts, stops = zip(span, spans.get(task, span))
                spans[task] = min(starts), max(stops)
    begun = min((start for start, _ in spans.values()), default=0.0)
    found = []
    for name in real:
        mine = [(*span, task) for task, span in spans.items() if task.device == name]
        mine.sort(key=lambda item: item[0])
        for (start, stop, task), (after, *_) in pairwise([*mine, (inf,)]):
            if (end := min(stop, after)) > start:
                found.append(replace(task, start=start - begun, stop=end - begun))
    return Timeline(tuple(found), (), plan.cluster.names, {})


def _tasks(name: str, count: int, names: Names, calls: _Calls) -> list[Task]:
    """The task that an op is of, without its times, for each time that it ran."""
    if (updated := names.update(name)) is not None:
        return [Task(*updated, "update", 0.0, 0.0)] * count
    traced_as = key_in(name)
    phase = "backward" if _GRADIENT.search(name) else "forward"
    keys = calls.get((traced_as, phase), [traced_as])
    found = []
    for number in range(count):  # in a loop an op runs several times per call
        call = number * len(keys) // count
        key = keys[call]
        part, target = names.part_of.get(key, ""), names.target_of.get(key, "")
        device, piece = target and names.device(target), keys[:call].count(key)
        found.append(Task(part, device, phase, 0.0, 0.0, piece))
    return found


def _calls(graphs: Sequence[Any]) -> _Calls:
    """The calls of part functions in the training step that was traced last."""
    for graph in reversed(graphs):
        found: dict[tuple[str, str], list[str]] = defaultdict(list)
        for op in graph.get_operations():
            read = (tensor.op.name for tensor in op.inputs)
            traced_as, key, phase = call_of(function_of(op), [op.name, *read])
            if traced_as:
                found[traced_as, phase].append(key)
        if any(phase == "backward" for _, phase in found):
            return found
    return {}


def _events(spaces: Iterable[bytes]) -> Iterator[tuple[str, bool, _Span]]:
    """The working ops of parts and updates: name, whether a GPU's kernel, seconds."""
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
                op, _, kind = name.rpartition(":")
                if key_in(op) and kind not in IDLE:
                    start = line.timestamp_ns * 1e-9 + event.offset_ps * 1e-12
                    yield op, on_gpu, (start, start + event.duration_ps * 1e-12)
