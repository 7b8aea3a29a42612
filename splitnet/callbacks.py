"""A Keras callback that shows planned and actual placement in TensorBoard.

TensorBoard's event files are written by TensorFlow alone: `tf.summary.text` and its
like belong to the package tensorboard, which TensorFlow does not install.
"""

import signal
import struct
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from splitnet.core.audit import Audit
from splitnet.core.errors import SplitnetError
from splitnet.core.plan import Plan
from splitnet.core.timeline import Timeline
from splitnet.tf.audit.observe import watching
from splitnet.tf.emit import plan_of
from splitnet.tf.profiling.profile_step import StepProfiler
from splitnet.view.dot import dot_of
from splitnet.view.render import render_dot
from splitnet.view.report import report
from splitnet.view.tables import table
from splitnet.view.timeline import dot_of_steps


class PlacementCallback(keras.callbacks.Callback):
    """Write a placed model's diagram, audit, memory and times for TensorBoard.

    - When training begins: the placement diagram and the timeline as images, the plan's
      table and the name of its report as text, and per device planned memory (bytes)
      and compute time (seconds per step).
    - After the first step: the audit of that step; no extra step is run.
    - After step `measured_step`: the measured timeline below the planned one, and the
      measured compute time per device.
    - After each epoch: measured seconds per step, and the memory peak of each GPU.

    Args:
        log_dir: a folder for event files, for example that of
            `keras.callbacks.TensorBoard`.
        measured_step: the step to measure, counted from 0; None for none. Step 0 is
            audited. TensorFlow makes one profile at a time, so use another step than
            the `profile_batch` of `keras.callbacks.TensorBoard`.

    `callback.audit` is the audit, None before the first step. A model that splitnet did
    not emit raises `PlanFileError` when training begins.
    """

    def __init__(self, log_dir: str | Path, *, measured_step: int | None = 2) -> None:
        if measured_step is not None and measured_step < 1:
            raise SplitnetError(
                f"measured_step={measured_step!r}: step 0 is audited, which slows it "
                "down. Give 1 or more, or None to measure no step."
            )
        super().__init__()
        self.audit: Audit | None = None
        self._folder = Path(log_dir) / "placement"
        self._watching = ExitStack()
        self._finish_audit: Any = None
        self._writer: Any = None
        self._measured_step = measured_step
        self._profiler: StepProfiler | None = None
        self._done = 0
        self._began, self._steps = 0.0, 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Write the plan, and prepare the audit of the first step."""
        plan = plan_of(self.model)
        self._stop_watching()
        self._writer = _EventWriter(self._folder)
        self._write_plan(plan)
        self.model.make_train_function(force=True)
        self._finish_audit = self._watching.enter_context(watching(self.model))
        self._done = 0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Start the profiler before the step to measure."""
        if self._done != self._measured_step:
            return
        try:
            if self.model.steps_per_execution > 1:
                raise SplitnetError("steps_per_execution runs several steps as one.")
            profiler = StepProfiler(self.model)
            profiler.start()
        except (SplitnetError, tf.errors.AlreadyExistsError) as error:
            self._writer.text("measured", f"No step was measured: {error}", step=1)
        else:
            self._profiler = profiler

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Start the clock of this epoch's steps."""
        self._began, self._steps = time.perf_counter(), 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Write the audit or the measured step; count other steps."""
        self._done += 1
        if self._finish_audit is not None:
            self._watching.close()
            finish, self._finish_audit = self._finish_audit, None
            self.audit = finish()
            self._write_audit(self.audit)
        elif self._profiler is not None:
            profiler, self._profiler = self._profiler, None
            self._write_measured(profiler.stop())
        else:
            self._steps += self.model.steps_per_execution
            return
        # Tracing, profiling and drawing do not count as step time.
        self._began, self._steps = time.perf_counter(), 0

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Write the seconds per step and the memory peaks."""
        if self._steps:
            seconds = (time.perf_counter() - self._began) / self._steps
            self._writer.scalar("measured/step_seconds", seconds, step=epoch)
        for device in plan_of(self.model).cluster.of_kind("gpu"):
            if not (device.stand_in or device.host):  # a GPU of this process
                info = tf.config.experimental.get_memory_info(device.target)
                tag = f"measured/memory_bytes/{device.name}"
                self._writer.scalar(tag, info["peak"], step=epoch)

    def on_train_end(self, logs: Any = None) -> None:
        """Close the event file."""
        self._stop_watching()
        self._writer.close()

    def _stop_watching(self) -> None:
        """End audit and profiling, also after a training that broke off."""
        self._watching.close()
        self._finish_audit = None
        if self._profiler is not None:
            self._profiler.stop()
            self._profiler = None

    def _write_plan(self, plan: Plan) -> None:
        self._writer.text("plan", table(plan, width=100), step=0)
        page = report(plan, self._folder / "report.html")
        self._writer.text("report", f"{page.name}, beside these event files", step=0)
        self._draw("placement", dot_of(plan), step=0)
        timeline = dot_of_steps({"planned": plan.timeline}, cluster=plan.cluster)
        self._draw("timeline", timeline, step=0)
        self._writer.scalar("planned/step_seconds", plan.seconds, step=0)
        for device, memory in plan.memory.items():
            tag = f"planned/memory_bytes/{device}"
            self._writer.scalar(tag, memory.total, step=0)
        self._write_compute("planned", plan.timeline)

    def _write_audit(self, audit: Audit) -> None:
        self._writer.text("audit", table(audit, width=100), step=1)
        self._writer.scalar("audit/findings", len(audit.findings), step=1)
        self._draw("placement", dot_of(audit.plan, audit=audit), step=1)

    def _write_measured(self, measured: Timeline) -> None:
        if not measured.tasks:
            self._writer.text("measured", "The profiler saw no op of a part.", step=1)
            return
        plan = plan_of(self.model)
        both = dot_of_steps(
            {"planned": plan.timeline, "measured": measured}, cluster=plan.cluster
        )
        self._draw("timeline", both, step=1)
        self._write_compute("measured", measured)

    def _write_compute(self, kind: str, timeline: Timeline) -> None:
        for device, seconds in timeline.compute_seconds.items():
            self._writer.scalar(f"{kind}/compute_seconds/{device}", seconds, step=0)

    def _draw(self, tag: str, dot: str, *, step: int) -> None:
        """Write an image; if Graphviz is missing, write the error instead."""
        try:
            self._writer.image(tag, render_dot(dot, "png"), step=step)
        except SplitnetError as error:
            self._writer.text(tag, str(error), step=step)


class ResumeTraining(keras.callbacks.BackupAndRestore):
    """Back up each epoch with its random states; save on SIGTERM as well.

    A run that finds a backup in `backup_dir` goes on after the last epoch in it. Keras'
    callback restores weights and optimizer, this one also the states of Dropout and
    other layers that draw numbers, so that losses equal those of a run that was not
    interrupted. The order of the data is up to the data: give `shuffle=False`, or a
    dataset that is shuffled by epoch with a seed.

    After SIGTERM (preemption) the current step ends, weights and states are saved, and
    the program exits with code 143. The epoch begins anew then, from these weights.

    Args:
        backup_dir: a folder for this training alone, on a disk that outlives the host.
            It is deleted when training is complete.
    """

    def __init__(self, backup_dir: str | Path) -> None:
        super().__init__(str(backup_dir))
        self._states_file = Path(backup_dir) / "random_states.npz"
        self._epoch = 0
        self._terminated = False
        self._before: Any = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Restore the backup, if there is one, and wait for SIGTERM."""
        super().on_train_begin(logs)
        if self._states_file.exists():
            with np.load(self._states_file) as saved:
                for number, state in enumerate(_random_states(self.model)):
                    state.assign(saved[str(number)])
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._terminate)

    def _terminate(self, number: int, frame: Any) -> None:
        self._terminated = True

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Remember the epoch, for a backup in the middle of it."""
        super().on_epoch_begin(epoch, logs)
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """After SIGTERM: save, and end the program."""
        super().on_train_batch_end(batch, logs)
        if self._terminated:
            self.on_epoch_end(self._epoch - 1, logs)
            raise SystemExit(128 + signal.SIGTERM)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Save weights, optimizer and random states."""
        super().on_epoch_end(epoch, logs)
        states = enumerate(_random_states(self.model))
        beside = self._states_file.with_suffix(".part.npz")
        np.savez(beside, **{str(number): state.numpy() for number, state in states})
        beside.replace(self._states_file)

    def on_train_end(self, logs: Any = None) -> None:
        """Delete the backup: training is complete."""
        super().on_train_end(logs)
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)


def _random_states(model: Any) -> list[Any]:
    """The variables that random numbers are drawn from; weights files lack them."""
    weights = {id(weight) for weight in model.weights}
    others = [v for v in model.variables if id(v) not in weights]
    return [v for v in others if v.path.endswith("seed_generator_state")]


class _EventWriter:
    """A folder of event files; each event is written at once."""

    def __init__(self, folder: Path) -> None:
        self._writer = tf.summary.create_file_writer(str(folder))

    def scalar(self, tag: str, value: float, *, step: int) -> None:
        """Write a point of a curve."""
        self._write(tag, tf.constant(value, tf.float32), "scalars", step)

    def text(self, tag: str, text: str, *, step: int) -> None:
        """Write preformatted text."""
        block = "\n".join(f"    {line}" for line in text.splitlines())
        self._write(tag, tf.constant(block), "text", step)

    def image(self, tag: str, png: bytes, *, step: int) -> None:
        """Write a PNG image; its header has its size."""
        width, height = struct.unpack(">II", png[16:24])
        values = tf.constant([str(width).encode(), str(height).encode(), png])
        self._write(tag, values, "images", step)

    def close(self) -> None:
        """Close the file."""
        self._writer.close()

    def _write(self, tag: str, tensor: tf.Tensor, plugin: str, step: int) -> None:
        metadata = tf.compat.v1.SummaryMetadata(
            plugin_data={"plugin_name": plugin}, display_name=tag
        )
        with self._writer.as_default(), tf.device("/device:CPU:0"):
            tf.summary.write(tag, tensor, step=step, metadata=metadata)
        self._writer.flush()
