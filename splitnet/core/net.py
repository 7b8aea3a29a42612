"""Declaring a net: branches, the device each should run on, and how they connect.

A net is a declaration. Layers are held and never called here; no Keras is imported,
nothing is built, no device memory is used. Faults are collected with their line in the
user's program, and reported together when the net is first read.
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from splitnet.core import hooks
from splitnet.core.cluster import device_name
from splitnet.core.errors import DeclarationError, DeviceError, listed

__all__ = [
    "BATCH_NORMS",
    "Towers",
    "Branch",
    "Net",
    "Output",
    "Ref",
    "preferences",
    "raise_faults",
    "refs_in",
]


BATCH_NORMS = ("per_tower", "synchronised")


@dataclass(frozen=True, slots=True)
class Towers:
    """How one body is replicated: `on` holds the wishes of each tower, in order.

    `broadcast` names the parts whose outputs every tower reads whole.
    """

    on: tuple[tuple[str, ...], ...]
    weights_on: tuple[str, ...] = ("cpu",)
    batch_norm: str = "per_tower"
    broadcast: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """How many towers there are."""
        return len(self.on)


@dataclass(frozen=True, eq=False)
class Ref:
    """What a branch gives: to be fed to other branches, or taken apart.

    A body with several outputs gives several values: `left, right = ref`, `ref[0]`,
    `ref["key"]`, `ref.keys()`.
    """

    net: "Net" = field(repr=False)
    name: str
    number: int = field(repr=False)
    path: tuple[int | str, ...] = ()

    def __getitem__(self, key: int | str) -> "Ref":
        """One of several outputs, by position or key."""
        return Ref(self.net, self.name, self.number, (*self.path, key))

    def __iter__(self) -> Iterator["Ref"]:
        """The outputs of a body that returns several, in order."""
        keys = self.net.keys_of(self)
        if keys is None:
            raise DeclarationError(
                f"branch {self.name!r} gives one output, so it cannot be taken apart; "
                "use the reference itself."
            )
        return iter([self[key] for key in keys])

    def __len__(self) -> int:
        """How many outputs a body that returns several has."""
        return len(self.net.keys_of(self) or ())

    def __bool__(self) -> bool:
        """A reference is always true; only counting needs Keras."""
        return True

    def keys(self) -> list[int | str]:
        """The keys of a body that returns a dict, so that `dict(ref)` works."""
        return list(self.net.keys_of(self) or ())


@dataclass(frozen=True, eq=False)
class Branch:
    """One line of a declaration. `inputs` is a `Ref` or a list or dict of them."""

    name: str
    kind: str
    inputs: Any
    body: Any
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
        return refs_in(self.inputs)


@dataclass(frozen=True)
class Output:
    """A model output: the reference, and the name it goes by."""

    ref: Ref
    name: str | None
    where: str


def raise_faults(name: str, faults: list[str]) -> None:
    """Raise one error for all faults of net `name`; none, no error."""
    if faults:
        count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
        raise DeclarationError(listed(f"net {name!r} has {count}.", faults))


def preferences(on: Any) -> tuple[str, ...]:
    """Bring `on=` to an order of preference of canonical names, kinds and "auto".

    Raises:
        DeviceError: an impossible name, or no name at all.

    >>> preferences("/gpu:1"), preferences(["gpu:1", "gpu", "cpu"])
    (('gpu:1',), ('gpu:1', 'gpu', 'cpu'))
    """
    names = list(on) if isinstance(on, list | tuple) else [on]
    if not names:
        raise DeviceError("an empty list prefers nothing; name a device, or 'auto'.")
    return tuple(dict.fromkeys(n if n == "auto" else device_name(n) for n in names))


def refs_in(value: Any) -> list[Ref]:
    """The references in a `Ref` or a nest of lists, tuples and dicts, in order."""
    if isinstance(value, Ref):
        return [value]
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return []
    return [ref for item in value for ref in refs_in(item)]


def sizes_of(shape: Any) -> tuple[tuple[int | None, ...], str]:
    """The sizes of an input's shape, and what is wrong with them; "" if nothing is.

    >>> sizes_of((28, None)), sizes_of(3)
    (((28, None), ''), ((), 'the shape must be a tuple such as (28, 28).'))
    """
    try:
        sizes = tuple(shape)
    except TypeError:
        return (), "the shape must be a tuple such as (28, 28)."
    bad = [size for size in sizes if size is not None and not _is_size(size)]
    if not bad:
        return sizes, ""
    return sizes, (
        f"the shape {sizes!r} holds {bad[0]!r}; sizes are whole numbers, or None where "
        "they vary."
    )


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


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
        if not isinstance(name, str) or not name.strip():
            self._fault(_line(), f"a net needs a name. Received: {name!r}.")

    def input(self, name: str, shape: Any, dtype: str = "float32") -> Ref:
        """Declare a model input, as `keras.Input`: the shape goes without the batch."""
        where = _line()
        sizes, fault = sizes_of(shape)
        if fault:
            self._fault(where, f"input {name!r}: {fault}")
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
        on: str | list[str] | tuple[str, ...] = "auto",
        near: Any = None,
        apart: Any = None,
    ) -> Ref:
        """Declare calls that live together on one device.

        Args:
            name: unique in the net; it names the branch in plans, diagrams and audits.
            inputs: a `Ref`, or a list, tuple or dict of them, as the body takes it.
            body: a layer, a list of layers, a `keras.Model`, or a function of symbolic
                tensors. One body in two branches shares its weights.
            on: a device ("gpu:0"), a kind ("gpu"), "auto", or an order of preference.
            near: a branch, or several, whose device it shares.
            apart: a branch, or several, whose device it must not share.
        """
        return self._declare("branch", name, inputs, body, on, near, apart, _line())

    def merge(
        self,
        name: str,
        inputs: Any,
        body: Any,
        *,
        on: str | list[str] | tuple[str, ...] = "cpu",
        near: Any = None,
        apart: Any = None,
    ) -> Ref:
        """Declare a branch with several inputs; the CPU is its home unless told."""
        where = _line()
        if len(refs_in(inputs)) < 2:
            self._fault(
                where,
                f"merge {name!r} joins {len(refs_in(inputs))} input; a merge needs two "
                "or more. Use net.branch for one.",
            )
        return self._declare("merge", name, inputs, body, on, near, apart, where)

    def towers(
        self,
        name: str,
        inputs: Any,
        body: Any,
        *,
        on: list[str] | tuple[str, ...],
        weights_on: str | list[str] | tuple[str, ...] = "cpu",
        join_on: str | list[str] | tuple[str, ...] = "cpu",
        batch_norm: str = "per_tower",
        broadcast: Any = None,
    ) -> Ref:
        """Declare one body on several devices, each with its share of the batch.

        The batch is split as evenly as can be (7 over 4 is 2, 2, 2, 1), outputs are put
        together in the order of the samples. Weights exist once; their gradient is
        that of the whole batch.

        Args:
            name: unique in the net; tower i is the part "name/i".
            inputs: as `branch`. Their first axis is the batch; what has another, a
                constant or a table, goes whole to every tower.
            body: as `branch`; its outputs' first axis must be the batch.
            on: a device per tower, two or more.
            weights_on: where the weights live.
            join_on: where the outputs are put together.
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
            tuple(self._wishes(name, one, where) for one in kinds),
            self._wishes(name, weights_on, where),
            batch_norm,
            self._neighbours(name, broadcast, "broadcast", where),
        )
        return self._declare(
            "towers", name, inputs, body, join_on, None, None, where, towers=towers
        )

    def split(
        self,
        name: str,
        inputs: Any,
        layer: Any,
        *,
        on: list[str] | tuple[str, ...],
        join_on: str | list[str] | tuple[str, ...] = "cpu",
    ) -> Ref:
        """Declare one wide layer, cut along its outputs over several devices.

        Each device holds its part of the weights, of their gradient and of the
        optimizer's slots; the outputs are put side by side. The emitted model has a
        narrower layer for each device; `save` and `unplace` make one of them again.

        Args:
            name: unique in the net; slice i is the part "name/i".
            inputs: what the layer reads.
            layer: a Dense, EinsumDense, Embedding, convolution, or attention by heads.
            on: a device per slice, two or more.
            join_on: where the outputs are put side by side.
        """
        where = _line()
        kinds = self._several("split", "slice", name, on, where)
        slices = tuple(self._wishes(name, one, where) for one in kinds)
        return self._declare(
            "split", name, inputs, layer, join_on, None, None, where, slices=slices
        )

    def output(self, ref: Any, name: str | None = None) -> None:
        """Declare a model output; its name is the branch's unless given."""
        where = _line()
        if not refs_in(ref):
            self._fault(
                where, f"net.output takes what a branch returned. Received: {ref!r}."
            )
        for one in refs_in(ref):
            self._own(one, where, "the output")
            self.outputs.append(Output(one, name, where))

    def keys_of(self, ref: Ref) -> list[int | str] | None:
        """The keys of a reference with several outputs; None if it has one."""
        keys: list[int | str] | None = hooks.call("output_keys", self, ref)
        return keys

    def faults(self) -> list[str]:
        """Every fault that can be seen without Keras, each with its file and line."""
        from splitnet.core.validation import faults_of

        return [*self._faults, *faults_of(self)]

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
        near: Any,
        apart: Any,
        where: str,
        **more: Any,
    ) -> Ref:
        wished = self._wishes(name, on, where)
        beside = self._neighbours(name, near, "near", where)
        away = self._neighbours(name, apart, "apart", where)
        return self._add(
            Branch(name, kind, inputs, body, wished, beside, away, where, **more)
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
        if not isinstance(branch.name, str) or not branch.name.strip():
            self._fault(
                branch.where, f"a branch needs a name. Received: {branch.name!r}."
            )
        for ref in branch.sources:
            self._own(ref, branch.where, f"branch {branch.name!r}")
        self.branches.append(branch)
        return Ref(self, str(branch.name), len(self.branches) - 1)

    def _own(self, ref: Ref, where: str, who: str) -> None:
        if ref.net is not self:
            self._fault(
                where,
                f"{who} uses {ref.name!r} of another net, {ref.net.name!r}; declare it "
                "in this one.",
            )

    def _wishes(self, name: str, on: Any, where: str) -> tuple[str, ...]:
        try:
            return preferences(on)
        except DeviceError as error:
            self._fault(where, f"branch {name!r}: on={on!r}: {error}")
            return ("auto",)

    def _neighbours(
        self, name: str, refs: Any, word: str, where: str
    ) -> tuple[str, ...]:
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

    def _fault(self, where: str, text: str) -> None:
        self._faults.append(f"{where}: {text}")

    def __repr__(self) -> str:
        """A line for a prompt."""
        return (
            f"<Net {self.name!r}: {len(self.branches)} branches, "
            f"{len(self.outputs)} outputs>"
        )


def _line() -> str:
    """The file and line of the program that called the method that called this."""
    frame = sys._getframe(2)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
