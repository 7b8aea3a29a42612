"""TensorBoard's event files, written by TensorFlow alone: no TensorBoard is needed.

`tf.summary.text` and its like live in the package tensorboard, which TensorFlow does
not bring along. Its file format does not: a tensor, and the name of who shows it.
"""

import struct
from pathlib import Path

import tensorflow as tf

__all__ = ["Board"]


class Board:
    """A folder of event files; what is written can be seen at once."""

    def __init__(self, folder: str | Path) -> None:
        self._writer = tf.summary.create_file_writer(str(folder))

    def scalar(self, tag: str, value: float, *, step: int) -> None:
        """A point of a curve."""
        self._write(tag, tf.constant(value, tf.float32), "scalars", step)

    def text(self, tag: str, text: str, *, step: int) -> None:
        """Text as it is, in letters of one width."""
        block = "\n".join(f"    {line}" for line in text.splitlines())
        self._write(tag, tf.constant(block), "text", step)

    def picture(self, tag: str, png: bytes, *, step: int) -> None:
        """A PNG picture; its size stands in its header."""
        width, height = struct.unpack(">II", png[16:24])
        values = tf.constant([str(width).encode(), str(height).encode(), png])
        self._write(tag, values, "images", step)

    def close(self) -> None:
        """End the file."""
        self._writer.close()

    def _write(self, tag: str, tensor: tf.Tensor, plugin: str, step: int) -> None:
        metadata = tf.compat.v1.SummaryMetadata(
            plugin_data={"plugin_name": plugin}, display_name=tag
        )
        with self._writer.as_default(), tf.device("/device:CPU:0"):
            tf.summary.write(tag, tensor, step=step, metadata=metadata)
        self._writer.flush()
