"""Keras callbacks: placement in TensorBoard, and training that can be resumed."""

import json
import shutil
import signal
import struct
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from traceback import walk_stack
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from splitnet.core.audit import Audit
from splitnet.core.errors import SplitnetError, warn
from splitnet.core.plan import Plan
from splitnet.core.timeline import Timeline
from splitnet.tf.audit.observe import watching
from splitnet.tf.emit import plan_of
from splitnet.view.render import picture
from splitnet.view.report import report
from splitnet.view.tables import table


class PlacementCallback(keras.callbacks.Callback):
    """Write a placed model's diagram, audit, memory and times to TensorBoard's folder.

    - When training begins: the placement diagram and the timeline as images, the plan's
      table as text, and per device planned memory (bytes) and compute time (seconds).
    - After the first step: its audit, `callback.audit` from then on.
    - After each epoch: measured seconds per step, and the memory peak of each GPU.
    """

    def __init__(self, log_dir: str | Path) -> None:
        super().__init__()
        self.audit: Audit | None = None
        self._folder = Path(log_dir) / "placement"
        self._watching = ExitStack()
        self._finish_audit: Any = None
        self._writer: Any = None
        self._began, self._steps = 0.0, 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Write the plan, and prepare the audit of the first step."""
        plan = plan_of(self.model)
        self._watching.close()  # of a training that broke off in its first step
        self._writer = tf.summary.create_file_writer(str(self._folder))
        self._write("plan", table(plan, width=100), 0)
        page = report(plan, self._folder / "report.html")
        self._write("report", f"{page.name}, beside these event files", 0)
        self._draw("placement", plan, 0)
        self._draw("timeline", plan.timeline, 0)
        self._write("planned/step_seconds", plan.seconds, 0)
        for device, seconds in plan.timeline.compute_seconds.items():
            self._write(f"planned/memory_bytes/{device}", plan.memory[device].total, 0)
            self._write(f"planned/compute_seconds/{device}", seconds, 0)
        self.model.make_train_function(force=True)
        self._finish_audit = self._watching.enter_context(watching(self.model))

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Start the clock of this epoch's steps."""
        self._began, self._steps = time.perf_counter(), 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Write the audit of the first step; count other steps."""
        if self._finish_audit is None:
            self._steps += self.model.steps_per_execution
            return
        self._watching.close()
        self.audit, self._finish_audit = self._finish_audit(), None
        self._write("audit", table(self.audit, width=100), 1)
        self._write("audit/findings", len(self.audit.findings), 1)
        self._draw("placement", self.audit, 1)
        # Tracing, reading graphs and drawing do not count as step time.
        self._began, self._steps = time.perf_counter(), 0

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Write the seconds per step and the memory peaks."""
        if self._steps:
            seconds = (time.perf_counter() - self._began) / self._steps
            self._write("measured/step_seconds", seconds, epoch)
        for device in plan_of(self.model).cluster.of_kind("gpu"):
            if not (device.stand_in or device.host):  # a GPU of this process
                info = tf.config.experimental.get_memory_info(device.target)
                self._write(f"measured/memory_bytes/{device.name}", info["peak"], epoch)

    def on_train_end(self, logs: Any = None) -> None:
        """Close the event file."""
        self._watching.close()
        self._writer.close()

    def _draw(self, tag: str, thing: Plan | Audit | Timeline, step: int) -> None:
        """Write an image; if Graphviz is missing, write the error instead."""
        try:
            self._write(tag, picture(thing, "png"), step)
        except SplitnetError as error:
            self._write(tag, str(error), step)

    def _write(self, tag: str, value: float | str | bytes, step: int) -> None:
        """Write a point, text, or PNG image; `tf.summary.text` needs tensorboard."""
        if isinstance(value, bytes):
            size = [str(n).encode() for n in struct.unpack(">II", value[16:24])]
            plugin, tensor = "images", tf.constant([*size, value])
        elif isinstance(value, str):
            block = "\n".join(f"    {line}" for line in value.splitlines())
            plugin, tensor = "text", tf.constant(block)
        else:
            plugin, tensor = "scalars", tf.constant(value, tf.float32)
        kind = {"plugin_name": plugin}
        metadata = tf.compat.v1.SummaryMetadata(plugin_data=kind, display_name=tag)
        with self._writer.as_default(), tf.device("/device:CPU:0"):
            tf.summary.write(tag, tensor, step=step, metadata=metadata)
        self._writer.flush()


class ResumeTraining(keras.callbacks.BackupAndRestore):
    """Back up each epoch with its random states; save on SIGTERM as well.

    A run that finds a backup in `backup_dir` goes on after the last epoch in it. Keras'
    callback restores weights and optimizer, this one also the states of Dropout and
    other layers that draw numbers, so that losses equal those of a run that was not
    interrupted. Give `shuffle=False`, or a dataset shuffled by epoch with a seed.

    After SIGTERM (preemption) the current step ends, weights and states are saved, and
    the program exits with code 143. The epoch begins anew then, from these weights, or
    from the backup before if the program was killed while it saved. `backup_dir` is
    for this training alone, and deleted when it is complete.
    """

    def __init__(self, backup_dir: str | Path) -> None:
        super().__init__(str(backup_dir), double_checkpoint=True)
        self._states_file = Path(backup_dir) / "random_states.npz"
        self._epoch, self._terminated = 0, False
        self._before: Any = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Restore the backup, if there is one, and wait for SIGTERM."""
        weights, last = Path(self._weights_path), Path(self._training_metadata_path)
        try:
            weights.exists() and json.loads(last.read_text())
        except (OSError, ValueError):  # killed while it was written
            for file in (weights, last):
                file.unlink(missing_ok=True)
                if Path(f"{file}.bkp").exists():
                    shutil.copyfile(f"{file}.bkp", file)
            if not weights.exists():
                warn(f"the backup {weights} is incomplete: training begins anew")
        super().on_train_begin(logs)
        if self._states_file.exists():
            with np.load(self._states_file) as saved:
                for number, state in _random_states(self.model).items():
                    state.assign(saved[number])

        def terminate(number: int, frame: Any) -> None:
            calls = (f for f, _ in walk_stack(frame) if f.f_code.co_name == "fit")
            self._terminated = any(f.f_locals.get("self") is self.model for f in calls)
            if not self._terminated:  # the training failed, without an end
                signal.signal(number, self._before)
                signal.raise_signal(number)

        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, terminate)

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
        states = _random_states(self.model).items()
        beside = self._states_file.with_suffix(".part.npz")
        np.savez(beside, **{number: state.numpy() for number, state in states})
        beside.replace(self._states_file)

    def on_train_end(self, logs: Any = None) -> None:
        """Delete the backup: training is complete. After SIGTERM keep it, and end."""
        if self._terminated:  # after the last step
            raise SystemExit(128 + signal.SIGTERM)
        super().on_train_end(logs)
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)


def _random_states(model: Any) -> dict[str, Any]:
    """The variables that random numbers are drawn from; weights files lack them."""
    its = (v for v in model.variables if v.path.endswith("seed_generator_state"))
    return {str(number): state for number, state in enumerate(its)}
