"""The ways to use several devices: what each takes, why, and how to get it."""

from dataclasses import dataclass

from splitnet.core.units import format_bytes, format_seconds

__all__ = ["Way", "Ways"]


@dataclass(frozen=True, slots=True)
class Way:
    """One way: `kind` is "one device", "plan", "towers" or "pipeline".

    `seconds` are of one step; `how` says how to get it; `fits` whether every device has
    room for it. What makes the step as long as it is: `busiest`, the seconds that the
    busiest device computes, and `copied_bytes` between devices.
    """

    kind: str
    seconds: float
    how: str
    fits: bool = True
    busiest: float = 0.0
    copied_bytes: int = 0

    @property
    def why(self) -> str:
        """What the step is spent on, in half a sentence."""
        crossing = f", {format_bytes(self.copied_bytes)} cross"
        return (
            f"the busiest device computes {format_seconds(self.busiest)}"
            f"{crossing if self.copied_bytes else ', nothing crosses'}"
        )


@dataclass(frozen=True, slots=True)
class Ways:
    """All ways that were weighed, the fastest that fits first."""

    all: tuple[Way, ...]

    def line(self) -> str:
        """All ways in a line, fastest first, and how to get the first."""
        said = ", ".join(
            f"{way.kind} {format_seconds(way.seconds)}"
            f"{'' if way.fits else ' (does not fit)'}"
            for way in self.all
        )
        return f"{said}. {self.best.kind} is fastest: {self.best.why}"

    @property
    def best(self) -> Way:
        """The fastest that fits; if none does, the fastest."""
        return self.all[0]

    def __getitem__(self, kind: str) -> Way:
        """The best way of a kind.

        Raises:
            KeyError: none of that kind could be weighed.
        """
        for way in self.all:
            if way.kind == kind:
                return way
        raise KeyError(kind)

    def __str__(self) -> str:
        """The verdict in a line, and a line for each way."""
        best = self.best
        rest = [w for w in self.all if w.kind == "one device" and w.fits]
        if best.kind == "one device":
            head = "several devices lose: one device is fastest"
        elif rest:
            times = rest[0].seconds / best.seconds
            head = f"{best.kind} is fastest, {times:.2f} times one device"
        else:
            head = f"{best.kind} is fastest; the model fits no single device"
        width = max(len(way.kind) for way in self.all)
        return "\n".join(
            [f"{head}: {best.how}."]
            + [
                f"  {way.kind:<{width}}  {format_seconds(way.seconds):>9}  {way.how}: "
                f"{way.why}{'' if way.fits else '; does not fit'}"
                for way in self.all
            ]
        )
