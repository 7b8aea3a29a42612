"""A plan of calls that is still growing."""

__all__ = ["HOST", "OPEN", "Partial"]

HOST, OPEN = -1, -2


class Partial:
    """What is placed so far.

    `call` is the call of each group, or `HOST`, or `OPEN`; `heard` has a bit for every
    call that a group hears from, and `begins` those among them by way of another call
    or the host, for groups that are ready; `ready` when these are.
    """

    __slots__ = (
        "begins",
        "call",
        "device",
        "end",
        "heard",
        "last",
        "left_bytes",
        "ready",
        "spent",
        "stop",
        "waiting",
        "work",
        "worth",
    )

    call: list[int]
    heard: list[int]
    stop: list[float]
    waiting: list[int]
    begins: dict[int, int]
    ready: dict[int, float]
    last: dict[int, int]
    left_bytes: dict[int, float]
    device: list[int]
    work: float
    spent: float
    end: float
    worth: float

    def copy(self) -> "Partial":
        """Return one to go on with; O(groups), in a few calls of C."""
        other = Partial()
        other.call, other.heard = self.call.copy(), self.heard.copy()
        other.stop, other.waiting = self.stop.copy(), self.waiting.copy()
        other.begins, other.ready = self.begins.copy(), self.ready.copy()
        other.last, other.left_bytes = self.last.copy(), self.left_bytes.copy()
        other.device = self.device.copy()
        other.work, other.spent = self.work, self.spent
        other.end, other.worth = self.end, self.worth
        return other
