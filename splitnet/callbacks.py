"""A Keras callback that shows in TensorBoard where a model is to run, and ran."""

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from splitnet.core.audit import Audit
from splitnet.core.cluster import Device
from splitnet.core.errors import SplitnetError
from splitnet.core.plan import Plan
from splitnet.core.timeline import Timeline
from splitnet.tf.audit.observe import watching
from splitnet.tf.board import Board
from splitnet.tf.emit import plan_of
from splitnet.tf.profiling.profile_step import StepProfiler
from splitnet.view.diagram import dot_of
from splitnet.view.render import render_dot
from splitnet.view.style import dot_of_scene
from splitnet.view.tables import table
from splitnet.view.timeline import gantt_of

__all__ = ["PlacementCallback"]


class PlacementCallback(keras.callbacks.Callback):
    """Write diagram, audit, memory and time of an emitted model for TensorBoard.

    When training begins: the placement diagram and the timeline as pictures, the plan's
    table as text, and per device the planned memory (bytes) and busy time (seconds a
    step). After the first step: the audit of that very step, which runs no step of its
    own. After another: when everything ran in it, drawn below the plan, and the busy
    time of each device as measured. After each epoch: the measured seconds of a step,
    and on a GPU the most memory that it held (bytes).

    Args:
        log_dir: a folder for event files, such as `keras.callbacks.TensorBoard` has.
        measured_step: the step to measure, counted from 0, which is the audit's; None
            for none. TensorFlow makes one profile at a time: choose another step than
            the `profile_batch` of `keras.callbacks.TensorBoard`.

    The audit is kept as `callback.audit`; it is None before the first step. Training a
    model that splitnet did not emit raises `PlanFileError` when it begins.
    """

    def __init__(self, log_dir: str | Path, *, measured_step: int | None = 2) -> None:
        if measured_step is not None and measured_step < 1:
            raise SplitnetError(
                f"measured_step={measured_step!r}: step 0 is audited, which takes its "
                "time. Give 1 or more, or None to measure none."
            )
        super().__init__()
        self.audit: Audit | None = None
        self._folder = Path(log_dir) / "placement"
        self._watching = ExitStack()
        self._finding: Any = None
        self._board: Any = None
        self._measured_step = measured_step
        self._recorder: StepProfiler | None = None
        self._done = 0
        self._began, self._steps = 0.0, 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Write what is planned, and watch the first step."""
        plan = plan_of(self.model)
        self._look_away()
        self._board = Board(self._folder)
        self._write_plan(plan)
        self.model.make_train_function(force=True)
        self._finding = self._watching.enter_context(watching(self.model))
        self._done = 0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Measure this step if it is the one."""
        if self._done != self._measured_step:
            return
        try:
            if self.model.steps_per_execution > 1:
                raise SplitnetError("steps_per_execution runs several steps as one.")
            recorder = StepProfiler(self.model)
            recorder.start()
        except (SplitnetError, tf.errors.AlreadyExistsError) as error:
            self._board.text("measured", f"No step was measured: {error}", step=1)
        else:
            self._recorder = recorder

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Start the clock of this epoch's steps."""
        self._began, self._steps = time.perf_counter(), 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Judge the first step, show the measured one; count the others."""
        self._done += 1
        if self._finding is not None:
            self._watching.close()
            finding, self._finding = self._finding, None
            self.audit = finding()
            self._write_audit(self.audit)
        elif self._recorder is not None:
            recorder, self._recorder = self._recorder, None
            self._write_measured(recorder.stop())
        else:
            self._steps += self.model.steps_per_execution
            return
        # Tracing, profiling and drawing are no part of a step.
        self._began, self._steps = time.perf_counter(), 0

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Write what was measured."""
        if self._steps:
            seconds = (time.perf_counter() - self._began) / self._steps
            self._board.scalar("measured/step_seconds", seconds, step=epoch)
        for device in plan_of(self.model).cluster:
            held = _peak_bytes(device)
            if held is not None:
                tag = f"measured/memory_bytes/{device.name}"
                self._board.scalar(tag, held, step=epoch)

    def on_train_end(self, logs: Any = None) -> None:
        """Close the file."""
        self._look_away()
        self._board.close()

    def _look_away(self) -> None:
        """Watch nothing any more, also where a training broke off."""
        self._watching.close()
        self._finding = None
        if self._recorder is not None:
            self._recorder.stop()
            self._recorder = None

    def _write_plan(self, plan: Plan) -> None:
        self._board.text("plan", table(plan), step=0)
        self._draw("placement", dot_of(plan), "dot", step=0)
        timeline = gantt_of({"planned": plan.timeline}, cluster=plan.cluster)
        self._draw("timeline", dot_of_scene(timeline), "nop2", step=0)
        self._board.scalar("planned/step_seconds", plan.seconds, step=0)
        for device, memory in plan.memory.items():
            tag = f"planned/memory_bytes/{device}"
            self._board.scalar(tag, memory.total, step=0)
        for device, seconds in plan.timeline.compute_seconds.items():
            self._board.scalar(f"planned/busy_seconds/{device}", seconds, step=0)

    def _write_audit(self, audit: Audit) -> None:
        self._board.text("audit", table(audit), step=1)
        self._board.scalar("audit/findings", len(audit.findings), step=1)
        self._draw("placement", dot_of(audit.plan, audit=audit), "dot", step=1)

    def _write_measured(self, measured: Timeline) -> None:
        if not measured.tasks:
            self._board.text("measured", "The profiler saw no op of a part.", step=1)
            return
        plan = plan_of(self.model)
        both = gantt_of(
            {"planned": plan.timeline, "measured": measured}, cluster=plan.cluster
        )
        self._draw("timeline", dot_of_scene(both), "nop2", step=1)
        for device, seconds in measured.compute_seconds.items():
            self._board.scalar(f"measured/busy_seconds/{device}", seconds, step=0)

    def _draw(self, tag: str, dot: str, program: str, *, step: int) -> None:
        """Write a picture; where none can be made, write why."""
        try:
            self._board.picture(tag, render_dot(dot, "png", program=program), step=step)
        except SplitnetError as error:
            self._board.text(tag, str(error), step=step)


def _peak_bytes(device: Device) -> int | None:
    """The most memory that a GPU of this program held, in bytes; None of any other."""
    if device.kind != "gpu" or device.stand_in or device.host:
        return None
    return int(tf.config.experimental.get_memory_info(device.target)["peak"])
