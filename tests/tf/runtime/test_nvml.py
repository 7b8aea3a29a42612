"""What the driver tells of the cards, from a driver that is made up."""

import sys
from types import ModuleType, SimpleNamespace

from splitnet.tf.runtime.nvml import cards

GIB = 2**30
NVMLError = type("NVMLError", (Exception,), {})  # of a query that a card does not know


def driver(count, **queries):
    """A pynvml with so many cards; `queries` replace what it answers."""
    process = SimpleNamespace(pid=7, usedGpuMemory=GIB)
    answers = {
        "Init": lambda: None,
        "Shutdown": lambda: None,
        "DeviceGetCount": lambda: count,
        "DeviceGetHandleByIndex": lambda index: index,
        "DeviceGetUUID": lambda card: f"GPU-{card}abc",
        "DeviceGetName": lambda card: f"card {card}",
        "DeviceGetMemoryInfo": lambda _: SimpleNamespace(total=80 * GIB, free=60 * GIB),
        "DeviceGetUtilizationRates": lambda card: SimpleNamespace(gpu=25),
        "DeviceGetComputeRunningProcesses": lambda card: [process],
        "DeviceGetP2PStatus": lambda card, other, what: what,
    }
    module = ModuleType("pynvml")
    given = {f"nvml{name}": act for name, act in (answers | queries).items()}
    vars(module).update(given, NVML_P2P_CAPS_INDEX_READ=(0,), NVMLError=NVMLError)
    return module


def unknown(*arguments):
    raise NVMLError


def test_cards_are_counted_as_cuda_does(monkeypatch):
    """CUDA_VISIBLE_DEVICES orders, hides, and ends at what it does not know."""
    monkeypatch.setitem(sys.modules, "pynvml", driver(2))
    told = {"1,0": [1, 0], "GPU-1": [1], "0,7,1": [0], "-1": [], "": []}
    for visible, numbers in told.items():
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert [card.model for card in cards()] == [f"card {n}" for n in numbers]
        assert [card.index for card in cards()] == list(range(len(numbers)))


def test_cards_tell_all_that_is_known(monkeypatch):
    """A query that a card or the machine refuses leaves that fact out."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    refused = ("UtilizationRates", "ComputeRunningProcesses", "P2PStatus")
    for names, told in (((), (0.25, ((7, GIB),), (1,))), (refused, (None, (), ()))):
        queries = {f"DeviceGet{name}": unknown for name in names}
        monkeypatch.setitem(sys.modules, "pynvml", driver(2, **queries))
        card, other = cards()
        assert (other.model, other.index) == ("card 1", 1)
        known = card.model, card.uuid, card.memory_bytes
        assert known == ("card 0", "GPU-0abc", 80 * GIB)
        assert (card.busy, card.used_by, card.links) == told
    for module in (driver(2, Init=unknown), None):
        monkeypatch.setitem(sys.modules, "pynvml", module)
        assert cards() == []
