"""The roads between devices: how fast a copy is, and whom it keeps busy."""

from dataclasses import dataclass

__all__ = ["Link"]


@dataclass(frozen=True, slots=True)
class Link:
    """The road between two devices: bytes per second, and seconds before the first.

    `source` or `target` "*" stands for every device that no other link names.
    `busy_share`, 0 to 1, is the share of a copy's time on the road in which the
    processors at both ends work for it, and so compute nothing: 0 where the hardware
    copies by itself.
    `crowding`, 0 to 1, says how far both ends share processors: what takes each of them
    a second alone takes 1 + `crowding` seconds at once.
    `gap_seconds` is what each of several copies keeps the road beside its bytes: the
    rest of its latency passes while others are on their way. If None, nothing does.
    """

    source: str
    target: str
    bytes_per_second: float
    latency_seconds: float = 0.0
    busy_share: float = 0.0
    crowding: float = 0.0
    gap_seconds: float | None = None

    def seconds(self, count: float) -> float:
        """The time that `count` bytes take, in seconds."""
        return self.latency_seconds + count / self.bytes_per_second

    @property
    def gap(self) -> float:
        """Seconds that a copy keeps the road beside its bytes."""
        return self.latency_seconds if self.gap_seconds is None else self.gap_seconds

    def faults(self) -> list[str]:
        """What cannot be in its figures, in a line if anything."""
        if (
            self.bytes_per_second > 0
            and 0 <= self.gap <= self.latency_seconds
            and 0 <= self.busy_share <= 1
            and 0 <= self.crowding <= 1
        ):
            return []
        return [
            f"link {self.source} -> {self.target} has impossible figures: "
            f"{self.bytes_per_second!r} B/s, {self.latency_seconds!r} s, of them "
            f"{self.gap!r} on the road, busy for {self.busy_share!r} of it, crowded by "
            f"{self.crowding!r}"
        ]
