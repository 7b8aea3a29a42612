"""Declare a net: branches, the device each should run on, and how they connect.

A net is a declaration. Layers are held and never called here; no Keras is imported,
nothing is built, no device memory is used. Faults are collected with their line in the
user's program, and reported together when the net is first read.
"""

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from splitnet.core import hook
from splitnet.core.branches import (
    BATCH_NORMS,
    Branch,
    Output,
    Ref,
    Towers,
    faults_of,
    preferences,
    raise_faults,
    refs_in,
)
from splitnet.core.errors import DeviceError

__all__ = [
    "BATCH_NORMS",
    "Branch",
    "Net",
    "Output",
    "Ref",
    "Towers",
    "preferences",
    "raise_faults",
    "refs_in",
]

On = str | list[str] | tuple[str, ...]
_NO_NAME = re.compile(r"[/\x00-\x1f\x7f-\x9f\ud800-\udfff]")


class Net:
    """A declaration of branches; see `docs/how-to`.

    Examples:
        >>> net = Net("small")
        >>> x = net.input("x", (4,))
        >>> net.output(net.branch("a", x, object(), on="gpu:0"))
        >>> [(branch.name, branch.on) for branch in net.branches]
        [('x', ('cpu',)), ('a', ('gpu:0',))]
    """

    def __init__(self, name: str = "net") -> None:
        self.name = name
        self.branches: list[Branch] = []
        self.outputs: list[Output] = []
        self._faults: list[str] = []
        self._check_name(name, "a net", _line())

    def input(self, name: str, shape: Any, dtype: str = "float32") -> Ref:
        """Declare a model input, as `keras.Input`: the shape goes without the batch."""
        where = _line()
        sizes = tuple(shape) if isinstance(shape, Sequence) else ()
        if not isinstance(shape, Sequence) or isinstance(shape, str):
            self._fault(
                where, f"input {name!r}: the shape must be a tuple such as (28, 28)."
            )
        self._faults += [
            f"{where}: input {name!r}: the shape {sizes!r} holds {size!r}; sizes are "
            "whole numbers, or None where they vary."
            for size in sizes
            if not (size is None or type(size) is int and size >= 0)
        ][:1]
        return self._add(
            Branch(
                name, "input", [], None, ("cpu",), where=where, shape=sizes, dtype=dtype
            )
        )

    def branch(
        self,
        name: str,
        inputs: Any,
        body: Any,
        *,
        on: On = "auto",
        near: Any = None,
        apart: Any = None,
    ) -> Ref:
        """Declare calls that run on one device.

        Args:
            name: unique in the net; it names the branch in plans, diagrams and audits.
            inputs: a `Ref`, or a list, tuple or dict of them, as the body takes it.
            body: a layer, a list of layers, a `keras.Model`, or a function of symbolic
                tensors. One body in two branches shares its weights.
            on: a device ("gpu:0"), a kind ("gpu"), "auto", or an order of preference.
            near: a branch, or several, that must be on the same device.
            apart: a branch, or several, that must be on other devices.
        """
        return self._declare("branch", name, inputs, body, on, _line(), near, apart)

    def merge(
        self,
        name: str,
        inputs: Any,
        body: Any,
        *,
        on: On = "cpu",
        near: Any = None,
        apart: Any = None,
    ) -> Ref:
        """Declare a branch with several inputs; it runs on the CPU unless told."""
        where = _line()
        count = len(refs_in(inputs))
        if count < 2:
            self._fault(
                where,
                f"merge {name!r} joins {count} input; a merge needs two or more. Use "
                "net.branch for one.",
            )
        return self._declare("merge", name, inputs, body, on, where, near, apart)

    def towers(
        self,
        name: str,
        inputs: Any,
        body: Any,
        *,
        on: list[str] | tuple[str, ...],
        weights_on: On = "cpu",
        join_on: On = "cpu",
        batch_norm: str = "per_tower",
        broadcast: Any = None,
    ) -> Ref:
        """Declare one body on several devices, each with its share of the batch.

        The batch is split as evenly as possible (7 over 4 is 2, 2, 2, 1), and outputs
        are joined in the order of the samples. Weights exist once; their gradient is
        that of the whole batch.

        Args:
            name: unique in the net; tower i is the part "name/i".
            inputs: as `branch`. Their first axis is the batch; an input with another
                first axis, such as a constant, goes whole to every tower.
            body: as `branch`; its outputs' first axis must be the batch.
            on: a device per tower, two or more.
            weights_on: the device of the weights.
            join_on: the device where the outputs are joined.
            batch_norm: "per_tower" (each share is normalised by itself; moving averages
                take the mean over towers) or "synchronised" (as the unsplit batch).
            broadcast: a reference, or several, that every tower reads whole.
        """
        where = _line()
        kinds = self._several("towers", "tower", name, on, where)
        if batch_norm not in BATCH_NORMS:
            self._fault(
                where,
                f"towers {name!r}: batch_norm= must be one of "
                f"{', '.join(map(repr, BATCH_NORMS))}. Received: {batch_norm!r}.",
            )
        towers = Towers(
            tuple(self._preferences(name, one, where) for one in kinds),
            self._preferences(name, weights_on, where),
            batch_norm,
            self._names(name, broadcast, "broadcast", where),
        )
        return self._declare("towers", name, inputs, body, join_on, where, of=towers)

    def split(
        self,
        name: str,
        inputs: Any,
        layer: Any,
        *,
        on: list[str] | tuple[str, ...],
        join_on: On = "cpu",
    ) -> Ref:
        """Declare one wide layer, split along its outputs over several devices.

        Each device holds its slice of the weights, of their gradient and of the
        optimizer's slots; the outputs are concatenated. The emitted model has a
        narrower layer for each device; `save` and `unplace` make one of them again.

        Args:
            name: unique in the net; slice i is the part "name/i".
            inputs: what the layer reads.
            layer: a Dense, EinsumDense, Embedding, convolution, or attention by heads.
            on: a device per slice, two or more.
            join_on: the device where the outputs are concatenated.
        """
        where = _line()
        kinds = self._several("split", "slice", name, on, where)
        slices = tuple(self._preferences(name, one, where) for one in kinds)
        return self._declare("split", name, inputs, layer, join_on, where, of=slices)

    def output(self, ref: Any, name: str | None = None) -> None:
        """Declare a model output; its name is the branch's unless given."""
        where = _line()
        if name is not None:
            self._check_name(name, "an output", where)
            name = str(name)
        if not refs_in(ref):
            self._fault(
                where, f"net.output takes what a branch returned. Received: {ref!r}."
            )
        for one in refs_in(ref):
            self._own(one, where, "the output")
            self.outputs.append(Output(one, name, where))

    def keys_of(self, ref: Ref) -> list[int | str] | None:
        """The keys of a reference with several outputs; None if it has one."""
        keys: list[int | str] | None = hook("output_keys")(self, ref)
        return keys

    def faults(self) -> list[str]:
        """Every fault that can be found without Keras, each with its file and line."""
        return [*self._faults, *faults_of(self.name, self.branches, self.outputs, self)]

    def check(self) -> None:
        """Raise all faults together.

        Raises:
            DeclarationError: with every fault of the declaration.
        """
        raise_faults(self.name, self.faults())

    def _declare(
        self,
        kind: str,
        name: str,
        inputs: Any,
        body: Any,
        on: Any,
        where: str,
        near: Any = None,
        apart: Any = None,
        of: Towers | tuple[tuple[str, ...], ...] = (),
    ) -> Ref:
        return self._add(
            Branch(
                name,
                kind,
                inputs,
                body,
                self._preferences(name, on, where),
                self._names(name, near, "near", where),
                self._names(name, apart, "apart", where),
                where,
                towers=of if isinstance(of, Towers) else None,
                slices=() if isinstance(of, Towers) else of,
            )
        )

    def _several(
        self, kind: str, share: str, name: str, on: Any, where: str
    ) -> list[Any]:
        """The devices of towers or slices, of which there must be two or more."""
        found = list(on) if isinstance(on, list | tuple) else []
        if len(found) < 2:
            self._fault(
                where,
                f"{kind} {name!r}: on= names {on!r}; give a list of two or more "
                f'devices, one for each {share}, such as ["gpu:0", "gpu:1"].',
            )
        return found

    def _add(self, branch: Branch) -> Ref:
        if not _is_name(branch.name):
            self._fault(
                branch.where,
                f"a branch needs a name of printable characters without '/'. Received: "
                f"{branch.name!r}.",
            )
            branch = replace(branch, name=str(branch.name))
        for ref in branch.sources:
            self._own(ref, branch.where, f"branch {branch.name!r}")
        self.branches.append(branch)
        return Ref(self, branch.name, len(self.branches) - 1)

    def _own(self, ref: Ref, where: str, who: str) -> None:
        if ref.net is not self:
            self._fault(
                where,
                f"{who} uses {ref.name!r} of another net, {ref.net.name!r}; declare it "
                "in this one.",
            )

    def _preferences(self, name: str, on: Any, where: str) -> tuple[str, ...]:
        try:
            return preferences(on)
        except DeviceError as error:
            self._fault(where, f"branch {name!r}: on={on!r}: {error}")
            return ("auto",)

    def _names(self, name: str, refs: Any, word: str, where: str) -> tuple[str, ...]:
        found = refs_in(refs)
        if refs is not None and not found:
            self._fault(
                where,
                f"branch {name!r}: {word}= takes what a branch returned. Received: "
                f"{refs!r}.",
            )
        for ref in found:
            self._own(ref, where, f"branch {name!r}")
        return tuple(ref.name for ref in found if ref.net is self)

    def _check_name(self, name: Any, what: str, where: str) -> None:
        """Names of models and outputs are scopes of TensorFlow's graphs."""
        if not _is_name(name) or name[0] in "_-":
            self._fault(
                where,
                f"{what} needs a name of printable characters without '/' that does "
                f"not begin with '_' or '-'. Received: {name!r}.",
            )

    def _fault(self, where: str, text: str) -> None:
        self._faults.append(f"{where}: {text}")

    def __repr__(self) -> str:
        """A line for a prompt."""
        return (
            f"<Net {self.name!r}: {len(self.branches)} branches, "
            f"{len(self.outputs)} outputs>"
        )


def _line() -> str:
    """The user's file, relative to the working folder, and line."""
    frame = sys._getframe(2)
    file = frame.f_code.co_filename
    inside = file.removeprefix(os.path.join(os.getcwd(), ""))
    return f"{os.path.basename(file) if inside == file else inside}:{frame.f_lineno}"


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and bool(name.strip()) and not _NO_NAME.search(name)
