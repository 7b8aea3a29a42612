"""A step as it ran: TensorFlow's profiler, read through the marks of the parts.

The profiler names every op that ran, when it began and how long it took. The marks in
the names say whose it is; ops of one part in a row become one task of the timeline.
"""

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import tensorflow as tf

from splitnet.core.errors import AuditError, DeviceError, listed
from splitnet.core.plan import Plan
from splitnet.core.timeline import Task, Timeline
from splitnet.tf.emit import plan_of
from splitnet.tf.marks import key_in, update_target
from splitnet.tf.observe import as_it_was, train_step
from splitnet.tf.partitions import Names, seen_ops
from splitnet.tf.placement import Placed, placed_of

__all__ = ["Recorder", "record"]

# Between two ops of a part that are no further apart its device counts as busy.
_GAP_SECONDS = 20e-6


def record(model: Any, batch: Any, *, steps: int = 3) -> Timeline:
    """Run training steps and return the shortest as a timeline, as it was measured.

    The steps are those of `fit`. Weights, optimizer state, metrics and random states
    are put back afterwards. `draw(plan, path, what="timeline", other=...)`,
    `report(plan, path, measured=...)` and `trace(plan, path, measured=...)` set the
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
    inputs, targets, weights = keras.utils.unpack_x_y_sample_weight(batch)
    if not model.compiled or targets is None:
        raise AuditError(
            f"record() runs training steps of model {model.name!r}: compile it, and "
            "give a batch with targets, such as (x[:32], y[:32])."
        )
    recorder = Recorder(model)
    found = []
    with as_it_was(model, training=True):
        train_step(model, inputs, targets, weights)
        for _ in range(max(steps, 1)):
            recorder.start()
            try:
                train_step(model, inputs, targets, weights)
            finally:
                found.append(recorder.stop())
    best = min(found, key=lambda timeline: timeline.seconds)
    if not best.tasks:
        raise AuditError(
            f"TensorFlow's profiler saw no op of model {plan.graph.name!r}. With "
            "run_eagerly=True ops carry no names: compile without it."
        )
    return best


class Recorder:
    """TensorFlow's profiler around whatever steps of one emitted model run.

    Raises:
        PlanFileError: the model was not emitted by splitnet.
        DeviceError: a device of its plan is in another program.
    """

    def __init__(self, model: Any) -> None:
        self._plan = plan_of(model)
        self._model = model
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        away = [d for d in self._plan.cluster if d.host]
        if away:
            raise DeviceError(
                listed(
                    "a profiler sees the ops of its own program only. Use "
                    "sn.measure(...) for devices of workers.",
                    [f"{device.name} ({device.target})" for device in away],
                )
            )

    def start(self) -> None:
        """Watch from here on.

        Raises:
            tf.errors.AlreadyExistsError: another profile is being made.
        """
        options = tf.profiler.experimental.ProfilerOptions(host_tracer_level=3)
        folder = tempfile.TemporaryDirectory(prefix="splitnet-")
        try:
            tf.profiler.experimental.start(folder.name, options)
        except BaseException:  # leave no folder behind, whatever ended it
            folder.cleanup()
            raise
        self._folder = folder

    def stop(self) -> Timeline:
        """Watch no more, and tell what ran since the start."""
        assert self._folder is not None
        tf.profiler.experimental.stop()
        with self._folder as folder:
            spaces = [f.read_bytes() for f in sorted(Path(folder).rglob("*.xplane.pb"))]
        placed = placed_of(self._model)
        assert placed is not None
        names = Names(self._plan, placed, getattr(self._model, "optimizer", None))
        return timeline_of(spaces, self._plan, placed, names)


def timeline_of(
    spaces: Iterable[bytes], plan: Plan, placed: Placed, names: Names
) -> Timeline:
    """The timeline that a profile's files tell."""
    here = {device.name: device for device in plan.cluster}
    seen = []
    for name, kind, on_gpu, start, stop in _events(spaces):
        target = placed.target_of.get(key_in(name) or "") or update_target(name)[1]
        node = SimpleNamespace(name=name, op=kind, device=target)
        for op in seen_ops([node], names):
            device = here.get(op.device)
            if device is None or not op.part:
                continue
            # A GPU's kernels count, and not the calls that send them on their way.
            if on_gpu == (device.kind == "gpu" and not device.stand_in):
                seen.append((start, stop, op.part, device.name, op.phase))
    seen.sort()
    begun = seen[0][0] if seen else 0.0
    devices = tuple(device.name for device in plan.cluster)
    tasks = [
        task
        for device in devices
        for task in _tasks([row for row in seen if row[3] == device], begun)
    ]
    return Timeline(tuple(tasks), (), devices, {})


def _events(
    spaces: Iterable[bytes],
) -> Iterator[tuple[str, str, bool, float, float]]:
    """Name, type, whether a GPU ran it, and seconds of every op in a profile."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    for text in spaces:
        for plane in xplane_pb2.XSpace.FromString(text).planes:
            on_gpu = plane.name.startswith("/device:GPU")
            for line in plane.lines:
                for event in line.events:
                    name = _op_name(plane, event) if on_gpu else ""
                    name = name or plane.event_metadata[event.metadata_id].name
                    start = line.timestamp_ns * 1e-9 + event.offset_ps * 1e-12
                    stop = start + event.duration_ps * 1e-12
                    op, _, kind = name.rpartition(":")
                    if key_in(op):
                        yield op, kind, on_gpu, start, stop


def _op_name(plane: Any, event: Any) -> str:
    """The op that a GPU's kernel belongs to; "" if it does not say."""
    for stat in event.stats:
        if plane.stat_metadata[stat.metadata_id].name == "tf_op":
            return stat.str_value or plane.stat_metadata[stat.ref_value].name
    return ""


def _tasks(rows: Iterable[tuple[float, float, str, str, str]], begun: float) -> Any:
    """Ops of one part and phase in a row as one task; tasks do not overlap."""
    found: list[Task] = []
    for start, stop, part, device, phase in rows:
        start, stop = start - begun, stop - begun
        last = found[-1] if found else None
        if last is not None:
            same = (last.part, last.phase) == (part, phase)
            if same and start <= last.stop + _GAP_SECONDS:
                start = found.pop().start
                stop = max(stop, last.stop)
            else:
                start = max(start, last.stop)
        if stop > start:
            found.append(Task(part, part, device, phase, start, stop))
    return found
