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


@pytest.mark.parametrize(
    ("visible", "models"),
    [
        (None, ["card 0", "card 1"]),
        ("1,0", ["card 1", "card 0"]),
        ("GPU-1", ["card 1"]),
        ("0,7,1", ["card 0"]),
        ("-1", []),
        ("", []),
    ],
)
def test_cards_are_counted_as_cuda_does(
    visible: str | None, models: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA_VISIBLE_DEVICES orders, hides, and ends at what it does not know."""
    monkeypatch.setitem(sys.modules, "pynvml", driver(2))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible or "")
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")

    found = cards()

    assert [card.model for card in found] == models
    assert [card.index for card in found] == list(range(len(models)))


@pytest.mark.parametrize(
    ("refused", "told"),
    [
        ((), (0.25, ((7, GIB),), (1,))),
        (
            ("UtilizationRates", "ComputeRunningProcesses", "P2PStatus"),
            (None, (), ()),
        ),
    ],
)
def test_cards_tell_all_that_is_known(
    refused: tuple[str, ...], told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query that a card refuses leaves that fact out, and nothing else."""
    queries = {f"nvmlDeviceGet{name}": unknown for name in refused}
    monkeypatch.setitem(sys.modules, "pynvml", driver(2, **queries))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    card, _ = cards()

    assert (card.model, card.uuid, card.memory_bytes) == (
        "card 0",
        "GPU-0abc",
        80 * GIB,
    )
    assert (card.busy, card.used_by, card.links) == told


@pytest.mark.parametrize("module", [driver(2, nvmlInit=unknown), None])
def test_no_driver_no_cards(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType | None
) -> None:
    """Without a driver, or without nvidia-ml-py, there is nothing to tell."""
    monkeypatch.setitem(sys.modules, "pynvml", module)

    assert cards() == []
