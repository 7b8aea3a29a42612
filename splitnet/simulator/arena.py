"""The memory that TensorFlow's allocator takes for blocks that come and go.

A worker's tensors from 256 KiB on lie in regions that double in size and are never
given back (`BFCAllocator`, under oneDNN's CPU allocator). A block takes the smallest
free piece that holds it, is cut off its front where the piece is twice as large, and
joins the free pieces beside it when it goes. What was once written stays resident, so
a process is as large as all places that blocks ever had, holes between them included.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable

__all__ = ["SMALLEST_BYTES", "arena_bytes"]

SMALLEST_BYTES = 2**18  # smaller tensors come from the C library

_FIRST_REGION = 2**21
_UNIT = 256  # every block is a multiple of it
_WASTE = 2**27  # a piece that is larger by this is cut whatever its share
_PAGE = 2**14  # resident memory is counted in these, coarser than the system does


def arena_bytes(blocks: Iterable[tuple[float, float, int]]) -> int:
    """The most bytes that blocks make resident: (seconds from, to, bytes) each.

    What goes at a moment makes room for what comes then. O(blocks log blocks).
    """
    events = []
    for number, (start, stop, size) in enumerate(blocks):
        events += [(start, 1, number, size), (stop, 0, number, size)]
    arena = _Arena()
    where: dict[int, int] = {}
    for _, comes, number, size in sorted(events):
        if comes:
            where[number] = arena.take(size)
        else:
            arena.give(where.pop(number))
    return arena.resident


class _Arena:
    """Regions one after the other, with a gap between that no piece joins across."""

    def __init__(self) -> None:
        self.region, self.end = _FIRST_REGION, 0
        self.free: list[tuple[int, int]] = []  # (bytes, address), sorted
        self.size: dict[int, int] = {}  # of each piece, by its address
        self.before: dict[int, int] = {}  # address just behind a piece -> its address
        self.used: set[int] = set()
        self.pages = bytearray()

    @property
    def resident(self) -> int:
        return self.pages.count(1) * _PAGE

    def take(self, size: int) -> int:
        """The address of a new block."""
        rounded = -(-size // _UNIT) * _UNIT
        at = bisect_left(self.free, (rounded, 0))
        if at == len(self.free):
            self._extend(rounded)
            at = bisect_left(self.free, (rounded, 0))
        whole, address = self.free.pop(at)
        if whole >= 2 * rounded or whole - rounded >= _WASTE:
            self._piece(address, rounded)
            self._piece(address + rounded, whole - rounded)
            insort(self.free, (whole - rounded, address + rounded))
        self.used.add(address)
        first, last = address // _PAGE, -(-(address + size) // _PAGE)
        self.pages[first:last] = b"\1" * (last - first)
        return address

    def give(self, address: int) -> None:
        """Free a block and join it with its neighbours."""
        self.used.discard(address)
        size = self.size[address]
        behind = address + size
        if behind in self.size and behind not in self.used:
            size += self._removed(behind)
        front = self.before.get(address)
        if front is not None and front not in self.used:
            self._removed(address, known=False)
            size += self._removed(front)
            address = front
        self._piece(address, size)
        insort(self.free, (size, address))

    def _piece(self, address: int, size: int) -> None:
        self.size[address] = size
        self.before[address + size] = address

    def _removed(self, address: int, *, known: bool = True) -> int:
        size = self.size.pop(address)
        self.before.pop(address + size, None)
        if known:
            self.free.pop(bisect_left(self.free, (size, address)))
        return size

    def _extend(self, rounded: int) -> None:
        grown = self.region
        while self.region < rounded:
            self.region *= 2
        address, size = self.end, self.region
        if self.region == grown:
            self.region *= 2
        self.end = address + size + _PAGE
        self.pages.extend(bytes(self.end // _PAGE - len(self.pages)))
        self._piece(address, size)
        insort(self.free, (size, address))
