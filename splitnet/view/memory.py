"""Memory per device as stacked bars, each against its limit."""

from collections.abc import Mapping

from splitnet.core.plan import Memory, Plan
from splitnet.core.units import format_bytes
from splitnet.view.colors import QUIET, colors_of, mixed
from splitnet.view.scene import Mark, Scene, Words
from splitnet.view.words import shortened

__all__ = ["KINDS", "memory_scene"]

KINDS = ("weights", "gradients", "slots", "activations", "receive_buffers", "workspace")

_LEFT, _WIDE, _RIGHT = 126.0, 740.0, 214.0
_BAR, _ROW = 20.0, 34.0
_LIMIT = "#b3261e"
# share of white mixed in, and hatching: neighbours differ in both
_SHADES = (
    (0.0, False),
    (0.0, True),
    (0.35, False),
    (0.55, False),
    (0.35, True),
    (0.75, False),
)


def memory_scene(plan: Plan, *, title: str = "memory per device") -> Scene:
    """Draw what each device holds at its fullest; all bars have one scale in bytes.

    A limit is a red line; one far beyond the scale stands behind a break in the bar.
    """
    devices = [device.name for device in plan.cluster]
    colors = colors_of(devices)
    fullest = max((m.total for m in plan.memory.values()), default=0)
    limits = [d.memory_bytes for d in plan.cluster]
    near = [limit for limit in limits if limit <= 2.5 * fullest]
    top = max([fullest, *near, 1]) * 1.04
    items: list[Mark | Words] = list(_legend())
    y = 40.0
    for device in plan.cluster:
        memory = plan.memory.get(device.name, Memory())
        items += _bar(
            device.name, memory, device.memory_bytes, colors[device.name], y, top
        )
        y += _ROW
    return Scene(_LEFT + _WIDE + _RIGHT, y + 6, title, tuple(items))


def _legend() -> list[Mark | Words]:
    items: list[Mark | Words] = []
    x = 16.0
    for kind, (pale, hatched) in zip(KINDS, _SHADES, strict=True):
        items.append(Mark(x, 8, 22, 11, mixed("#57606a", "#ffffff", pale), hatched))
        items.append(Words(x + 28, 13.5, kind, 10, QUIET, room=90))
        x += 42 + 6.2 * len(kind)
    items.append(Mark(x + 8, 6, 2, 15, _LIMIT))
    said = "limit (behind a gap: far beyond the scale)"
    items.append(Words(x + 16, 13.5, said, 10, QUIET, room=260))
    return items


def _bar(
    device: str, memory: Memory, limit: int, color: str, y: float, top: float
) -> list[Mark | Words]:
    strong = mixed(color, "#000000", 0.25)
    items: list[Mark | Words] = [
        Words(16, y + _BAR / 2, shortened(device, 16), 11, strong, bold=True, room=108),
        Mark(_LEFT, y, _WIDE, _BAR, "#eef0f2"),
    ]
    x = _LEFT
    for kind, size in _sizes(memory).items():
        pale, hatched = _SHADES[KINDS.index(kind)]
        wide = _WIDE * size / top
        tip = f"{kind} on {device}: {format_bytes(size)}"
        if wide > 0.05:
            fill = mixed(color, "#ffffff", pale)
            items.append(Mark(x, y, wide, _BAR, fill, hatched, tip))
        x += wide
    said = f"{format_bytes(memory.total)} of {format_bytes(limit)}"
    far = limit > top
    if far:  # the bar's ground is broken before a limit that no scale can hold
        items.append(Mark(_LEFT + _WIDE - 14, y - 1, 6, _BAR + 2, "#ffffff"))
    if limit:
        place = _LEFT + _WIDE * (1 if far else limit / top)
        items.append(Mark(place - 1, y - 4, 2, _BAR + 8, _LIMIT))
    share = memory.total / limit if limit else 0.0
    said += f" ({share:.0%})" if share >= 0.005 else ""
    over = memory.total > limit
    items.append(
        Words(
            _LEFT + _WIDE + 10,
            y + _BAR / 2,
            said + (": too much" if over else ""),
            10,
            _LIMIT if over else QUIET,
            bold=over,
            room=_RIGHT - 12,
        )
    )
    return items


def _sizes(memory: Memory) -> Mapping[str, int]:
    return {kind: getattr(memory, kind) for kind in KINDS}
