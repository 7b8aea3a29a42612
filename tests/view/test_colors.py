"""One device, one colour."""

from itertools import combinations

from splitnet.view.colors import colors_of, mixed, readable_on


def test_colors_of_gives_the_first_eight_devices_different_colours() -> None:
    """Seven GPUs and a CPU can be told apart."""
    names = [*(f"gpu:{n}" for n in range(7)), "cpu:0"]
    assert len(set(colors_of(names).values())) == 8


def test_colors_of_keeps_a_device_its_colour_when_others_join_behind() -> None:
    """The same device looks the same in a plan for two and for four GPUs."""
    few = colors_of(["gpu:0", "gpu:1", "cpu:0"])
    many = colors_of(["gpu:0", "gpu:1", "gpu:2", "gpu:3", "cpu:0"])
    assert {name: many[name] for name in few} == dict(few)


def test_colors_of_tells_gpus_of_another_host_apart() -> None:
    """Two machines' first GPUs are two colours."""
    found = colors_of(["worker:0/gpu:0", "worker:1/gpu:0", "worker:0/cpu:0"])
    assert len(set(found.values())) == 3


def test_colors_of_gives_a_sixteenth_gpu_a_valid_colour() -> None:
    """The palette does not run out."""
    found = colors_of(f"gpu:{n}" for n in range(40))
    assert all(len(color) == 7 and color.startswith("#") for color in found.values())
    assert len(set(list(found.values())[:16])) == 16


def test_colors_of_differ_for_people_who_do_not_see_red_and_green() -> None:
    """Seen through deuteranopia, any two of the first five GPUs stay apart."""
    seen = [_deuteranope(c) for c in colors_of(f"gpu:{n}" for n in range(5)).values()]
    for one, other in combinations(seen, 2):
        assert sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) ** 0.5 > 30


def test_readable_on_picks_a_contrast_of_at_least_four_and_a_half() -> None:
    """Text on a device's colour can be read (WCAG 2, AA)."""
    for color in colors_of([*(f"gpu:{n}" for n in range(14)), "cpu:0"]).values():
        one, other = sorted([_light(color), _light(readable_on(color))])
        assert (other + 0.05) / (one + 0.05) >= 4.5, color


def test_mixed_ends_in_either_colour() -> None:
    """None of the other is the one; all of it is the other."""
    assert mixed("#123456", "#ffffff", 0.0) == "#123456"
    assert mixed("#123456", "#ffffff", 1.0) == "#ffffff"


def _channels(color: str) -> tuple[float, float, float]:
    return tuple(int(color[at : at + 2], 16) for at in (1, 3, 5))  # type: ignore[return-value]  # three of them


def _light(color: str) -> float:
    linear = [
        v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4
        for v in (c / 255 for c in _channels(color))
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _deuteranope(color: str) -> tuple[float, float, float]:
    """A common linear approximation of how a deuteranope sees a colour."""
    r, g, b = _channels(color)
    return (0.625 * r + 0.375 * g, 0.7 * r + 0.3 * g, 0.3 * g + 0.7 * b)
