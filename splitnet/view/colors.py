"""One device, one colour, in every picture; told apart by a colour-blind person too."""

from collections.abc import Iterable, Mapping

__all__ = ["INK", "QUIET", "colors_of", "mixed", "readable_on"]

INK = "#1b1f24"
QUIET = "#6a737d"

# Okabe and Ito, "Color Universal Design" (2008), from the most to the least distinct;
# black is left to the text and yellow, too pale for a line, comes last.
_GPU = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    "#c8b900",
)
_CPU = ("#6b7480", "#9a8c7a", "#4c5866", "#857f96")
_DARKER = 0.28


def colors_of(devices: Iterable[str]) -> Mapping[str, str]:
    """Give each device, in order, its colour "#rrggbb"; CPUs are grey.

    After the seventh GPU the colours come again, darker: a device is then told apart
    by its name, which every picture writes beside the colour.

    >>> dict(colors_of(["gpu:0", "gpu:1", "cpu:0"]))
    {'gpu:0': '#0072b2', 'gpu:1': '#d55e00', 'cpu:0': '#6b7480'}
    """
    found: dict[str, str] = {}
    seen = {"gpu": 0, "cpu": 0}
    for device in devices:
        kind = "cpu" if device.rpartition("/")[2].startswith("cpu") else "gpu"
        palette = _CPU if kind == "cpu" else _GPU
        turn, place = divmod(seen[kind], len(palette))
        color = palette[place]
        for _ in range(min(turn, 3)):
            color = mixed(color, "#000000", _DARKER)
        found[device] = color
        seen[kind] += 1
    return found


def mixed(color: str, other: str, share: float) -> str:
    """Mix `share` (0 to 1) of `other` into `color`; both "#rrggbb".

    >>> mixed("#000000", "#ffffff", 0.5)
    '#808080'
    """
    one, two = _channels(color), _channels(other)
    return "#" + "".join(
        f"{round(a + (b - a) * share):02x}" for a, b in zip(one, two, strict=True)
    )


def readable_on(color: str) -> str:
    """Choose black or white text, whichever stands out more on `color`.

    >>> readable_on("#ffffff"), readable_on("#0072b2")
    ('#000000', '#ffffff')
    """
    light = _luminance(color)
    return "#000000" if (light + 0.05) ** 2 >= 1.05 * 0.05 else "#ffffff"


def _channels(color: str) -> tuple[int, int, int]:
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)


def _luminance(color: str) -> float:
    """The relative luminance of WCAG 2, 0 to 1."""
    linear = [
        value / 12.92 if value <= 0.03928 else ((value + 0.055) / 1.055) ** 2.4
        for value in (channel / 255 for channel in _channels(color))
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
