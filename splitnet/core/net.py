"""Declare a net: branches, the device each should run on, and how they connect.

Layers are held and never called here; no Keras is imported. Faults are collected with
their line in the user's program, and reported together when the net is first read.
"""

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from splitnet.core import Pictured, errors, hook
from splitnet.core.cluster import device_name
from splitnet.core.errors import DeclarationError, DeviceError
from splitnet.core.graph import BATCH_NORMS, Towers, conflicts

_SCOPE = re.compile(r"[A-Za-z0-9.][\w.>-]*", re.ASCII)  # of TensorFlow's graphs

On = str | list[str] | tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Ref:
    """The output of a branch, an input of others; of several `ref[0]`, `a, b = ref`."""

    net: Any = field(repr=False)
    name: str
    number: int = field(repr=False)
    path: tuple[int | str, ...] = ()

    def __getitem__(self, key: int | str) -> "Ref":
        return Ref(self.net, self.name, self.number, (*self.path, key))

    def __iter__(self) -> Iterator["Ref"]:
        if not (keys := hook("output_keys")(self.net, self)):
            hint = "it cannot be unpacked; use the reference itself."
            raise DeclarationError(f"branch {self.name!r} has one output, so {hint}")
        return iter([self[key] for key in keys])


@dataclass(frozen=True, eq=False)
class Branch:
    """One declared branch, or an output, whose name may be ""; as `graph.Part`."""

    name: str
    kind: str
    inputs: Any
    body: Any = None
    on: tuple[str, ...] = ("auto",)
    near: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()
    where: str = ""
    shape: tuple[int | None, ...] = ()
    dtype: str = ""
    towers: Towers | None = None
    slices: tuple[tuple[str, ...], ...] = ()

    @property
    def sources(self) -> list[Ref]:
        """The references it reads, in order."""
        return _refs_in(self.inputs)


class Net(Pictured):
    """A declaration of branches; see `docs/how-to`.

    Examples:
        >>> net = Net("small")
        >>> net.output(net.branch("a", net.input("x", (4,)), object(), on="gpu:0"))
        >>> [(branch.name, branch.on) for branch in net.branches]
        [('x', ('cpu',)), ('a', ('gpu:0',))]
    """

    def __init__(self, name: str = "net") -> None:
        self.name = name
        self.branches: list[Branch] = []
        self.outputs: list[Branch] = []
        self._faults: list[str] = []
        self._check_name(name, "a net")

    def input(self, name: str, shape: Any, dtype: str = "float32") -> Ref:
        """Declare a model input, as `keras.Input`: the shape goes without the batch."""
        if not isinstance(shape, Sequence) or isinstance(shape, str | bytes):
            self._fault(f"input {name!r}: the shape must be a tuple such as (28, 28).")
            shape = ()
        return self._add("input", name, [], on="cpu", shape=tuple(shape), dtype=dtype)

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
        return self._add("branch", name, inputs, body, on, near, apart)

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
        ref = self._add("merge", name, inputs, body, on, near, apart)
        if (count := len(_refs_in(inputs))) < 2:
            hint = "a merge needs two or more. Use net.branch for one."
            self._fault(f"merge {name!r} joins {count} input; {hint}")
        return ref

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
    ) -> Ref:
        """Declare one body on several devices, each with its share of the batch.

        Tower i is the part "name/i", on device i of two or more. The batch is split as
        evenly as possible (7 over 4 is 2, 2, 2, 1), and outputs are joined in the order
        of the samples, on `join_on`. Weights exist once, on `weights_on`; their
        gradient is that of the whole batch.

        The first axis of inputs and outputs is the batch; an input with another, such
        as a constant, goes whole to every tower.
        `batch_norm` is "per_tower" (each share is normalised by itself; moving averages
        take the mean over towers) or "synchronised" (as the unsplit batch).
        """
        if batch_norm not in BATCH_NORMS:
            known = ", ".join(map(repr, BATCH_NORMS))
            head = f"towers {name!r}: batch_norm= must be one of {known}."
            self._fault(f"{head} Received: {batch_norm!r}.")
        places = self._several("towers", "tower", name, on)
        towers = Towers(places, self._preferences(name, weights_on), batch_norm)
        return self._add("towers", name, inputs, body, join_on, towers=towers)

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

        Each device of `on`, two or more, holds its slice of the weights, gradients and
        slots, as the part "name/i"; the outputs are concatenated on `join_on`. The
        emitted model has a narrower layer for each slice, which `save` and `unplace`
        make one again. `layer` is a Dense, EinsumDense, Embedding, convolution, or
        attention, which is split by heads.
        """
        slices = self._several("split", "slice", name, on)
        return self._add("split", name, inputs, layer, join_on, slices=slices)

    def output(self, ref: Any, name: str | None = None) -> None:
        """Declare a model output; its name is the branch's unless given."""
        if name is not None and not _SCOPE.fullmatch(str(name)):
            wanted = "ASCII letters or digits, then also '_', '-' and '>'"
            self._fault(f"an output needs a name of {wanted}. Received: {name!r}.")
        for one in self._refs(ref, "the output"):
            named = "" if name is None else str(name)
            self.outputs.append(Branch(named, "output", one, where=_line()))

    def faults(self) -> list[str]:
        """Every fault that can be found without Keras, each with its file and line."""
        if not self.branches:
            what = "declare an input, a branch and an output"
            return [*self._faults, f"net {self.name!r} is empty; {what}."]
        named = [*{branch.name: branch for branch in self.branches}.values()]
        pins = {b.name: b.on for b in named if len(b.on) == 1 and ":" in b.on[0]}
        found = [*self._faults]
        first: dict[tuple[object, ...], Branch] = {}
        for one in (*self.branches, *self.outputs):
            ends, name, path = one.kind == "output", one.name, ()
            if ends and not name:  # it has that of its branch
                name, path = one.inputs.name, one.inputs.path
            if name and (other := first.setdefault((ends, name, path), one)) is not one:
                taken = f"is taken by the {other.kind} at {other.where}"
                found.append(f"{one.where}: the name {name!r} {taken}.")
        if not self.outputs:
            what = "has no output; say net.output(ref) for each."
            found.append(f"net {self.name!r} {what}")
        readers = (*self.branches, *self.outputs)  # whose last ones are told
        read = {ref.number for x in readers for ref in x.sources if ref.net is self}
        for number, branch in enumerate(self.branches if self.outputs else ()):
            if number not in read:
                who = f"{branch.where}: {branch.kind} {branch.name!r}"
                found.append(f"{who} leads to no output; use it or remove it.")
        return [*found, *(f"{fault}." for fault in conflicts(named, pins))]

    def check(self) -> None:
        """Raise `DeclarationError` with every fault of the declaration."""
        raise_faults(self.name, self.faults())

    def _add(
        self,
        kind: str,
        name: str,
        inputs: Any,
        body: Any = None,
        on: Any = "auto",
        near: Any = None,
        apart: Any = None,
        **more: Any,
    ) -> Ref:
        self._check_name(name, "a branch")
        if kind != "input":
            self._refs(inputs, f"{kind} {name!r}")
        near = self._names(near, f"branch {name!r}: near=")
        apart = self._names(apart, f"branch {name!r}: apart=")
        its = str(name), kind, inputs, body, self._preferences(name, on)
        branch = Branch(*its, near, apart, _line(), **more)
        self.branches.append(branch)
        return Ref(self, branch.name, len(self.branches) - 1)

    def _several(
        self, kind: str, share: str, name: str, on: Any
    ) -> tuple[tuple[str, ...], ...]:
        found = on if isinstance(on, list | tuple) else ()
        places = tuple(self._preferences(name, one) for one in found)
        pins = [one[0] for one in places if len(one) == 1 and ":" in one[0]]
        if len(found) < 2 or errors.repeated(pins):
            wanted = f'one for each {share}, each once: ["gpu:0", "gpu:1"]'
            head = f"{kind} {name!r}: on= must be a list of two or more devices"
            self._fault(f"{head}, {wanted}. Received: {on!r}.")
        return places

    def _preferences(self, name: str, on: Any) -> tuple[str, ...]:
        try:
            return preferences(on)
        except DeviceError as error:
            self._fault(f"branch {name!r}: on={on!r}: {error}")
            return ("auto",)

    def _names(self, value: Any, who: str) -> tuple[str, ...]:
        its = () if value is None else self._refs(value, who)
        return tuple(ref.name for ref in its)

    def _refs(self, value: Any, who: str) -> list[Ref]:
        """The references in a value; what is none, or of another net, is a fault."""
        found = _refs_in(value)
        if not found:
            self._fault(f"{who} takes what a branch returned. Received: {value!r}.")
        for ref in found:
            if ref.net is not self:
                other = f"{ref.name!r} of another net, {ref.net.name!r}"
                self._fault(f"{who} uses {other}; declare it in this one.")
        return [ref for ref in found if ref.net is self]

    def _check_name(self, name: Any, what: str) -> None:
        named = isinstance(name, str) and name.strip() and "/" not in name
        if not named or errors.CONTROL.search(name):
            wanted = "a name of printable characters without '/'"
            self._fault(f"{what} needs {wanted}. Received: {name!r}.")

    def _fault(self, text: str) -> None:
        self._faults.append(f"{_line()}: {text}")

    def __repr__(self) -> str:
        counts = f"{len(self.branches)} branches, {len(self.outputs)} outputs"
        return f"<Net {self.name!r}: {counts}>"


def _line() -> str:
    """The file, relative to the working folder, and line that called this module."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_globals is globals():
        frame = frame.f_back
    file = frame.f_code.co_filename
    inside = file.removeprefix(os.path.join(os.getcwd(), ""))
    return f"{os.path.basename(file) if inside == file else inside}:{frame.f_lineno}"


def raise_faults(name: str, faults: list[str]) -> None:
    """Raise one error for all faults of net `name`; none, no error."""
    if faults:
        count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
        raise DeclarationError(f"net {name!r} has {count}.", faults)


def preferences(on: Any) -> tuple[str, ...]:
    """Parse `on=` into an order of preference of canonical names, kinds and "auto"."""
    names = list(on) if isinstance(on, list | tuple) else [on]
    if not names:
        raise DeviceError("the list is empty; name a device, or 'auto'.")
    return tuple(dict.fromkeys(n if n == "auto" else device_name(n) for n in names))


def _refs_in(value: Any) -> list[Ref]:
    if isinstance(value, Ref):
        return [value]
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return []
    return [ref for item in value for ref in _refs_in(item)]
