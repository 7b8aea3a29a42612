"""Branches of a declaration, and the rules that they must keep."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from splitnet.core.cluster import device_name
from splitnet.core.errors import DeclarationError, DeviceError, listed

__all__ = [
    "BATCH_NORMS",
    "Branch",
    "Output",
    "Ref",
    "Towers",
    "faults_of",
    "preferences",
    "raise_faults",
    "refs_in",
]

BATCH_NORMS = ("per_tower", "synchronised")


@dataclass(frozen=True, slots=True)
class Towers:
    """How a body is replicated: `on` holds the preferred devices of each tower.

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
    """The output of a branch: an input of other branches, or of `net.output`.

    A body with several outputs gives several: `left, right = ref`, `ref[0]`,
    `ref["key"]`, `ref.keys()`.
    """

    net: Any = field(repr=False)
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
                f"branch {self.name!r} has one output, so it cannot be unpacked; use "
                "the reference itself."
            )
        return iter([self[key] for key in keys])

    def __len__(self) -> int:
        """How many outputs a body that returns several has."""
        return len(self.net.keys_of(self) or ())

    def __bool__(self) -> bool:
        """A reference is always true; counting its outputs would need Keras."""
        return True

    def keys(self) -> list[int | str]:
        """The keys of a body that returns a dict, so that `dict(ref)` works."""
        return list(self.net.keys_of(self) or ())


@dataclass(frozen=True, eq=False)
class Branch:
    """One declared branch. `inputs` is a `Ref` or a list, tuple or dict of them.

    `where` is its file and line in the user's program.
    """

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
    """A model output: the reference, and its name if one was given."""

    ref: Ref
    name: str | None
    where: str


def raise_faults(name: str, faults: list[str]) -> None:
    """Raise one error for all faults of net `name`; none, no error."""
    if faults:
        count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
        raise DeclarationError(listed(f"net {name!r} has {count}.", faults))


def preferences(on: Any) -> tuple[str, ...]:
    """Parse `on=` into an order of preference of canonical names, kinds and "auto".

    Raises:
        DeviceError: an impossible name, or no name at all.

    >>> preferences("/gpu:1"), preferences(["gpu:1", "gpu", "cpu"])
    (('gpu:1',), ('gpu:1', 'gpu', 'cpu'))
    """
    names = list(on) if isinstance(on, list | tuple) else [on]
    if not names:
        raise DeviceError("the list is empty; name a device, or 'auto'.")
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


def faults_of(
    name: str, branches: Sequence[Branch], outputs: Sequence[Output], net: object
) -> list[str]:
    """Every fault of a net as a whole, each with its file and line.

    References to other nets than `net` are left out; they are faults by themselves.
    """
    if not branches:
        return [f"net {name!r} is empty; declare an input, a branch and an output."]
    return [
        *_repeated_names(branches, outputs),
        *_without_inputs(branches),
        *_unused(name, branches, outputs, net),
        *_conflicts(branches),
        *_shared_devices(branches),
    ]


def _repeated_names(
    branches: Sequence[Branch], outputs: Sequence[Output]
) -> Iterator[str]:
    first: dict[str, Branch] = {}
    for branch in branches:
        earlier = first.setdefault(branch.name, branch)
        if earlier is not branch:
            yield (
                f"{branch.where}: the name {branch.name!r} is taken by the "
                f"{earlier.kind} at {earlier.where}; names are unique in a net."
            )
    named: dict[str, Output] = {}
    for output in outputs:
        if output.name and named.setdefault(output.name, output) is not output:
            yield (
                f"{output.where}: the name {output.name!r} is taken by the output at "
                f"{named[output.name].where}; names of outputs are unique."
            )


def _without_inputs(branches: Sequence[Branch]) -> Iterator[str]:
    for branch in branches:
        if branch.kind in ("branch", "split", "towers") and not branch.sources:
            yield (
                f"{branch.where}: {branch.kind} {branch.name!r} reads nothing; give it "
                "what net.input or net.branch returned."
            )


def _unused(
    name: str, branches: Sequence[Branch], outputs: Sequence[Output], net: object
) -> Iterator[str]:
    """Inputs that nothing reads, and branches from which no output can be reached."""
    if not outputs:
        yield f"net {name!r} has no output; say net.output(ref) for each."
        return
    needed: set[int] = set()
    todo = [output.ref for output in outputs]
    while todo:
        ref = todo.pop()
        if ref.net is net and ref.number not in needed and ref.number < len(branches):
            needed.add(ref.number)
            todo += branches[ref.number].sources
    for number, branch in enumerate(branches):
        if number not in needed:
            what = "leads to no output"
            if branch.kind == "input":
                what = "is read by no branch that leads to an output"
            yield (
                f"{branch.where}: {branch.kind} {branch.name!r} {what}; use it or "
                "remove it."
            )


def _conflicts(branches: Sequence[Branch]) -> Iterator[str]:
    """Conflicts of `near`, which binds branches into groups, with pins and `apart`."""
    named = {branch.name: branch for branch in branches}
    group = {name: name for name in named}
    for branch in named.values():
        for near in dict.fromkeys(branch.near):
            old, new = group[branch.name], group.get(near, group[branch.name])
            group = {name: new if one == old else one for name, one in group.items()}
    pins: dict[str, dict[str, Branch]] = defaultdict(dict)
    for branch in named.values():
        if len(branch.on) == 1 and ":" in branch.on[0]:
            pins[group[branch.name]].setdefault(branch.on[0], branch)
    for devices in pins.values():
        first, *others = devices.values()
        for other in others:
            yield (
                f"{other.where}: branch {other.name!r} is on {other.on[0]}, but near= "
                f"binds it to {first.name!r}, which is on {first.on[0]} (at "
                f"{first.where})."
            )
    for branch in named.values():
        for name in branch.apart:
            if name not in named:
                continue
            head = f"{branch.where}: branch {branch.name!r} must be apart from {name!r}"
            mine, its = group[branch.name], group[name]
            if mine == its:
                yield (
                    f"{head} (at {named[name].where}), but near= binds them to one "
                    "device."
                )
            elif next(iter(pins[mine]), "mine") == next(iter(pins[its]), "its"):
                yield f"{head}, but both are on {next(iter(pins[mine]))}."


def _shared_devices(branches: Sequence[Branch]) -> Iterator[str]:
    """Towers or slices that are pinned to one device together."""
    for branch in branches:
        places = branch.towers.on if branch.towers is not None else branch.slices
        share = "tower" if branch.towers is not None else "slice"
        pins = Counter(one[0] for one in places if len(one) == 1 and ":" in one[0])
        for pin, count in pins.items():
            if count > 1:
                yield (
                    f"{branch.where}: {branch.kind} {branch.name!r}: on= names {pin!r} "
                    f"{count} times. Several {share}s on one device gain nothing; give "
                    "each a device of its own."
                )
