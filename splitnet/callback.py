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
from splitnet.tf.board import Board
from splitnet.tf.emit import plan_of
from splitnet.tf.observe import watching
from splitnet.view.dot import dot_of
from splitnet.view.render import render_dot
from splitnet.view.scene import dot_of_scene
from splitnet.view.text import table
from splitnet.view.timeline import gantt_of

__all__ = ["PlacementCallback"]


class PlacementCallback(keras.callbacks.Callback):
    """Write diagram, audit, memory and time of an emitted model for TensorBoard.

    When training begins: the placement diagram and the timeline as pictures, the plan's
    table as text, and per device the planned memory (bytes) and busy time (seconds a
    step). After the first step: the audit of that very step, which runs no step of its
    own. After each epoch: the measured seconds of a step, and on a GPU the most memory
    that it held (bytes).

    Args:
        log_dir: a folder for event files, such as `keras.callbacks.TensorBoard` has.

    The audit is kept as `callback.audit`; it is None before the first step. Training a
    model that splitnet did not emit raises `PlanFileError` when it begins.
    """

    def __init__(self, log_dir: str | Path) -> None:
        super().__init__()
        self.audit: Audit | None = None
        self._folder = Path(log_dir) / "placement"
        self._watching = ExitStack()
        self._finding: Any = None
        self._board: Any = None
        self._began, self._steps = 0.0, 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Write what is planned, and watch the first step."""
        plan = plan_of(self.model)
        self._board = Board(self._folder)
        self._write_plan(plan)
        self.model.make_train_function(force=True)
        self._finding = self._watching.enter_context(watching(self.model))

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Start the clock of this epoch's steps."""
        self._began, self._steps = time.perf_counter(), 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Judge the first step; count the others."""
        if self._finding is None:
            self._steps += 1
            return
        self._watching.close()
        finding, self._finding = self._finding, None
        self.audit = finding()
        self._write_audit(self.audit)
        self._began = time.perf_counter()  # tracing is no part of a step

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
        self._watching.close()
        self._finding = None
        self._board.close()

    def _write_plan(self, plan: Plan) -> None:
        self._board.text("plan", table(plan), step=0)
        self._draw("placement", dot_of(plan), "dot", step=0)
        timeline = gantt_of({"planned": plan.timeline}, cluster=plan.cluster)
        self._draw("timeline", dot_of_scene(timeline), "nop2", step=0)
        self._board.scalar("planned/step_seconds", plan.seconds, step=0)
        for device, memory in plan.memory.items():
            tag = f"planned/memory_bytes/{device}"
            self._board.scalar(tag, memory.total, step=0)
        for device, seconds in plan.timeline.busy.items():
            self._board.scalar(f"planned/busy_seconds/{device}", seconds, step=0)

    def _write_audit(self, audit: Audit) -> None:
        self._board.text("audit", table(audit), step=1)
        self._board.scalar("audit/findings", len(audit.findings), step=1)
        self._draw("placement", dot_of(audit.plan, audit=audit), "dot", step=1)

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
