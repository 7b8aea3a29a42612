"""What the driver tells of the cards, from a driver that is made up."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from splitnet.tf.runtime.nvml import cards

GIB = 2**30


class NVMLError(Exception):
    """What a query that a card does not know raises."""


def driver(count: int, **queries: Any) -> ModuleType:
    """A pynvml with so many cards; `queries` replace what it answers."""
    module = ModuleType("pynvml")
    answers = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: count,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}abc",
        "nvmlDeviceGetName": lambda handle: f"card {handle}",
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(
            total=80 * GIB, free=(60 - handle) * GIB
        ),
        "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=25),
        "nvmlDeviceGetPowerUsage": lambda handle: 120_000,
        "nvmlDeviceGetComputeRunningProcesses": lambda handle: [
            SimpleNamespace(pid=7, usedGpuMemory=GIB)
        ],
        "nvmlDeviceGetP2PStatus": lambda handle, other, what: 0,
        "NVML_P2P_CAPS_INDEX_READ": 0,
        "NVMLError": NVMLError,
    }
    for name, answer in (answers | queries).items():
        setattr(module, name, answer)
    return module


def unknown(*arguments: Any) -> Any:
    """A query that the card refuses."""
    raise NVMLError


@pytest.fixture
def two_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver with two cards and nothing hidden."""
    monkeypatch.setitem(sys.modules, "pynvml", driver(2))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.usefixtures("two_cards")
def test_cards_tell_all_that_is_known() -> None:
    """Name, memory, use, power, processes and links."""
    first, second = cards()

    assert (first.name, first.uuid) == ("card 0", "GPU-0abc")
    assert (first.memory_bytes, second.free_bytes) == (80 * GIB, 59 * GIB)
    assert (first.busy, first.watts) == (0.25, 120.0)
    assert first.used_by == ((7, GIB),)
    assert (first.links, second.links) == ((1,), (0,))


@pytest.mark.usefixtures("two_cards")
@pytest.mark.parametrize(
    ("visible", "names"),
    [
        ("1", ["card 1"]),
        ("1,0", ["card 1", "card 0"]),
        ("GPU-1", ["card 1"]),
        ("0,7,1", ["card 0"]),
        ("-1", []),
        ("", []),
    ],
)
def test_cards_are_counted_as_cuda_does(
    visible: str, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA_VISIBLE_DEVICES orders, hides, and ends at what it does not know."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    found = cards()

    assert [card.name for card in found] == names
    assert [card.index for card in found] == list(range(len(names)))


def test_cards_that_know_less_tell_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query that a card refuses leaves that fact out, and nothing else."""
    refused = (
        "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetComputeRunningProcesses",
        "nvmlDeviceGetP2PStatus",
    )
    module = driver(2, **dict.fromkeys(refused, unknown))
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    first, _ = cards()

    assert (first.name, first.memory_bytes) == ("card 0", 80 * GIB)
    assert (first.busy, first.watts, first.used_by, first.links) == (None, None, (), ())


@pytest.mark.parametrize("module", [driver(2, nvmlInit=unknown), None])
def test_no_driver_no_cards(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType | None
) -> None:
    """Without a driver, or without nvidia-ml-py, there is nothing to tell."""
    monkeypatch.setitem(sys.modules, "pynvml", module)

    assert cards() == ()
