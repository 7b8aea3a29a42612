"""The nouns of a declaration: references, branches, outputs and wishes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from splitnet.core.devices import device_name
from splitnet.core.errors import DeclarationError, DeviceError, listed
from splitnet.core.shares import Towers

if TYPE_CHECKING:
    from splitnet.core.declare import Net

__all__ = ["Branch", "Output", "Ref", "raise_faults", "refs_in", "sizes_of", "wishes"]


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


def wishes(on: Any) -> tuple[str, ...]:
    """Bring `on=` to an order of preference of canonical names, kinds and "auto".

    Raises:
        DeviceError: an impossible name, or no name at all.

    >>> wishes("/gpu:1"), wishes(["gpu:1", "gpu", "cpu"])
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
