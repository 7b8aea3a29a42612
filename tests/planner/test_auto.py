"""strategy="auto": which strategy is chosen, what may be fixed, and what is said."""

import re
from dataclasses import replace
from functools import partial
from itertools import product

import pytest

import splitnet as sn
from splitnet.core.timeline import SCHEDULES, Execution
from splitnet.planner.evaluate import executed
from splitnet.planner.planner import search
from splitnet.planner.strategies import auto as strategies
from splitnet.planner.strategies import candidates
from splitnet.simulator.units import scaled_graph
from splitnet.view.diagram import diagram_of
from tests import zoo
from tests.planner.quick import has_room
from tests.zoo import MIB, call, chain, graph_of, random_dag, source, two_towers, wide

BOX = sn.Cluster.of("2*gpu", "cpu")
SMALL = sn.Cluster.of("2*gpu", "cpu", memory="32 MiB", cpu_memory="12 MiB")
TIGHT = sn.Cluster.of("2*gpu", memory="17 MiB")
SLOW = sn.Cluster.of("2*gpu", "cpu", link="1 GB/s")
HEAVY, LARGE = chain(4, flops=1e12), chain(6, flops=4e10, out=8 * MIB)


def auto(graph, cluster=BOX, **options):
    short = {"time_limit": 90.0, "effort": 30_000, "strategy": "auto"}
    return sn.plan(graph, cluster, **(short | options))


def kind(plan):
    return plan.verdict.strategies.chosen


@pytest.mark.parametrize(
    ("graph", "cluster", "wanted"),
    [
        (chain(4, flops=1e3), SLOW, "one device"),
        (HEAVY, BOX, "towers"),
        (wide(2), BOX, "placement"),
        (wide(2, flops=1e6), BOX, "one device"),
        (two_towers(flops=1e12), BOX, "placement"),
        (chain(4, flops=2e10), TIGHT, "pipeline"),
        (LARGE, SMALL, "pipeline"),
        (random_dag(1, 12), BOX, "pipeline"),
        (two_towers(), sn.Cluster.of("cpu"), "one device"),
    ],
)
def test_auto_chooses_what_suits_the_model(graph, cluster, wanted):
    """The simplest of those that are at most two per cent slower than the fastest."""
    plan = auto(graph, cluster)
    rows = plan.verdict.strategies
    slower = rows[wanted].seconds > 1.02 * rows.best.seconds
    assert kind(plan) == wanted
    assert ("Keras adds 1 ms to each step" in str(rows)) == slower
    assert has_room(plan)
    assert bool(plan.graph.towers) == (wanted == "towers")
    for name in ("chain/0", "chain/weights") if plan.graph.towers else ():
        assert "or the strategy put" in plan.explain(name).reason
    assert (plan.execution.microbatches > 1) == (wanted == "pipeline")


def test_auto_copies_stages_to_each_host():
    """Where no GPU has room for the model, and four stages wait longer than two."""
    hosts = ("worker:0/gpu:0", "worker:0/gpu:1", "worker:1/gpu:0", "worker:1/gpu:1")
    box = sn.Cluster.of("cpu", *hosts, memory="30 MiB", cpu_memory="20 MiB")
    plan = auto(chain(8, flops=1e12), box, microbatches=4)
    assert kind(plan) == "towers"
    assert has_room(plan)
    assert [one.count for one in plan.graph.towers.values()] == [2] * 8
    where = plan.device_of
    assert [where[f"c{i}/0"] for i in range(8)] == [hosts[0]] * 4 + [hosts[1]] * 4
    assert [where[f"c{i}/1"] for i in range(8)] == [hosts[2]] * 4 + [hosts[3]] * 4
    drawn = diagram_of(plan)
    assert list(drawn.lanes) == ["cpu:0", *hosts]
    lanes = {name: box.lane for box in drawn.boxes for name in box.group.members}
    assert lanes == {name: where[name] for name in lanes}
    assert lanes.keys() == where.keys() - {f"c{i}" for i in range(7)}


def test_auto_copies_all_but_the_large_tables():
    """Tables of 400 MiB would cross to every tower in every step; their rows do."""
    names = [f"t{i}" for i in range(4)]
    calls = [source("x"), *(call(n, flops=0.0, weights=(f"{n}/w",)) for n in names)]
    calls += [call(f"c{i}", flops=1e12) for i in range(3)]
    edges = [("x", n) for n in names] + [(n, "c0") for n in names]
    edges += [("c0", "c1"), ("c1", "c2")]
    graph = graph_of("tables", calls, edges, weight_bytes=400 * MIB)
    plan = auto(graph, sn.Cluster.of("4*gpu", "cpu"))
    assert kind(plan) == "towers"
    assert [one.count for one in plan.graph.towers.values()] == [4]
    assert sorted(plan.device_of[n] for n in names) == [f"gpu:{i}" for i in range(4)]


def test_a_table_on_another_device_is_a_placement():
    """Calls without FLOPs are somewhere, too: pins={"*": device} would move them."""
    graph = zoo.altered(chain(3), "calls", "c0", forward_flops=0.0, kind="Embedding")
    pins = {"c0": "gpu:1", "c*": "gpu:0"}
    assert kind(auto(graph, pins=pins, towers=1)) == "placement"


def test_what_fits_in_micro_batches_is_placed_for_them():
    """No GPU has room for the whole batch, and the host is slow."""
    graph = random_dag(5, 8)
    whole = sn.score(graph, BOX, {"*": "gpu:0"}).memory["gpu:0"].total
    room, host = int(0.52 * whole), 4 * whole
    box = sn.Cluster.of("2*gpu", "cpu", memory=room, cpu_memory=host)
    plan = auto(graph, box, towers=1)
    assert has_room(plan)
    assert plan.execution.microbatches > 1
    assert plan.seconds < sn.score(graph, box, {"*": "cpu:0"}).seconds / 4


def test_a_refusal_names_a_strategy_that_fits():
    pins = {"c[0-2]": "gpu:0", "*": "gpu:1"}
    with pytest.raises(sn.InfeasibleError) as caught:
        sn.plan(LARGE, SMALL, pins=pins, time_limit=0.2)
    line = r"try +strategy='auto' \(fits with (.*), predicted ([\d.]+) times the step"
    said = re.search(line, str(caught.value))
    words = re.findall(r"(\w+)=('?\w+'?)", said[1])
    plan = auto(LARGE, SMALL, pins=pins, **{name: eval(value) for name, value in words})
    whole = auto(LARGE, BOX, pins=pins, microbatches=1, recompute=False)
    assert has_room(plan)
    assert plan.seconds / whole.seconds == pytest.approx(float(said[2]), rel=0.05)


@pytest.mark.parametrize(
    "fixed",
    [
        {"microbatches": 4},
        {"microbatches": 3, "schedule": "gpipe", "towers": 1},
        {"recompute": True, "towers": 1},
        {"towers": 2, "microbatches": 2},
        {"microbatches": 1, "towers": 1, "recompute": False},
    ],
)
def test_what_is_fixed_is_kept(fixed):
    plan = auto(HEAVY, **fixed)
    how = plan.execution
    counts = [one.count for one in plan.graph.towers.values()]
    assert how.microbatches == fixed.get("microbatches", how.microbatches)
    assert how.schedule == fixed.get("schedule", how.schedule)
    assert bool(how.recompute) == fixed.get("recompute", bool(how.recompute))
    assert "towers" not in fixed or counts == ([2] if fixed["towers"] == 2 else [])
    alone = sn.plan(HEAVY, BOX, pins={"*": "gpu:0"}).value  # with nothing fixed
    assert plan.verdict.single_device_value == pytest.approx(alone, rel=3e-5)


def test_searches_of_auto_share_its_effort(monkeypatch):
    spent, spy = [], lambda *of: spent.append(of[2].effort) or search(*of)
    monkeypatch.setattr(strategies, "search", spy)
    auto(wide(2), effort=30_000)
    assert spent == [30_000, *[6_000] * 4]


def test_towers_that_are_fixed_are_there_with_large_weights_and_for_one_sample():
    weights = tuple(replace(one, bytes=100 * MIB) for one in HEAVY.weights)
    for graph in (replace(HEAVY, weights=weights), scaled_graph(HEAVY, 1)):
        assert kind(auto(graph, towers=2)) == "towers"


def test_bytes_of_outputs_scale_with_the_batch_and_not_those_of_weights():
    two = {"output_shapes": ((4, 3), (4,)), "output_dtypes": ("int32",) * 2}
    two |= {"moved_bytes": 132.0, "fixed_outputs": (1,)}
    one = call("a", out=32, weights=("w",), **two)
    made = scaled_graph(graph_of("g", [one], [], weight_bytes=100, batch=4), 6).calls[0]
    assert (made.output_bytes, made.moved_bytes) == (44, 148.0)
    assert made.output_shapes == ((6, 3), (4,))  # the second is of no batch


PINNED = sn.score(chain(1), sn.Cluster.of("gpu", "cpu"), {"c0": "gpu", "x": "cpu"})
chosen, simulated = partial(auto, chain(4)), partial(sn.simulate, PINNED)
predicted = partial(sn.simulate, replace(PINNED, training=False))
compared = partial(sn.compare_strategies, PINNED)
trained = partial(auto, replace(chain(1), training=True))


@pytest.mark.parametrize(
    ("verb", "options", "words"),
    [
        (chosen, {"strategy": "best"}, "strategy= must be one of 'auto' or None"),
        (chosen, {"strategy": None, "towers": 2}, "'auto' where towers= is given"),
        (chosen, {"objective": "memory"}, "must be 'latency' with strategy='auto'"),
        (chosen, {"microbatches": 33}, "microbatches=33 is more than the batch, 32"),
        (chosen, {"seed": 2**70}, "(int, out of range)"),
        (chosen, {"towers": 3}, "towers=3 is more than the devices for them, 2"),
        (chosen, {"pins": auto(HEAVY)}, "and parts of this plan are towers. Emit"),
        (chosen, {"training": False, "microbatches": 2}, "are for training"),
        (chosen, {"microbatches": 1, "schedule": "1f1b"}, "an order of micro-batches"),
        (predicted, {"recompute": True}, "are for training; the plan is of inference"),
        (simulated, {"microbatches": 33, "schedule": "zb"}, "schedule= must be one"),
        (compared, {"towers": 1}, "takes nothing else"),
        (trained, {"training": False}, "the graph has training=True. Ask for that"),
    ],
)
def test_what_cannot_be_fixed_is_refused(verb, options, words):
    with pytest.raises(sn.DeclarationError, match=re.escape(words)):
        verb(**options)


def test_a_model_that_cannot_be_divided_is_not():
    """BatchNormalization needs the whole batch: towers share moments, pieces cannot."""
    graph = zoo.altered(HEAVY, "calls", "c1", batch_moments=True)
    plan = auto(graph)
    assert plan.execution.microbatches == 1
    assert [one.batch_norm for one in plan.graph.towers.values()] == ["synchronised"]
    with pytest.raises(sn.DeclarationError, match="=2 would not be exact: c1"):
        auto(graph, microbatches=2)


def test_the_order_of_unlike_devices_does_not_matter():
    speeds = ["10 TFLOP/s"] * 2 + ["1 TFLOP/s"] * 2
    rows = [sn.Device.of(f"gpu:{i}", speed=speed) for i, speed in enumerate(speeds)]
    lists = rows[:2], rows, rows[::-1]
    boxes = [sn.Cluster((*row, sn.Device.of("cpu"))) for row in lists]
    for fixed in ({"towers": 2}, {"microbatches": 4}, {}):
        fewer, first, last = (auto(HEAVY, box, **fixed).seconds for box in boxes)
        assert first == pytest.approx(last)
        assert last <= fewer * (1 + 1e-6)  # slow ones do no harm


def test_a_remedy_is_looked_for_no_longer_than_the_limits(monkeypatch):
    tried, run = [], candidates.Trial.run

    def counted(trial, known):
        run(trial, known)
        tried.append(len(trial.found))

    monkeypatch.setattr(candidates.Trial, "run", counted)
    for seconds in (20.0, 0.0):
        monkeypatch.setattr(strategies, "_TRIAL_SECONDS", seconds)
        with pytest.raises(sn.InfeasibleError):
            sn.plan(chain(4), sn.Cluster.of("2*gpu", memory="5 MiB"), time_limit=1e-9)
    assert tried[0] > tried[1] > 0


def test_what_is_fixed_and_fits_nowhere_says_so():
    words = "no strategy with towers=2 fits; plan(source, cluster) does"
    with pytest.raises(sn.InfeasibleError, match=re.escape(words)):
        auto(chain(4), TIGHT, towers=2)
    words = "fits, nor one without that(.|\n)*without a strategy; with one, less may"
    with pytest.raises(sn.InfeasibleError, match=words):
        auto(chain(4), sn.Cluster.of("2*gpu", memory="5 MiB"), towers=2)
    how = {"strategy": "auto", "towers": 2, "pins": {"*": "gpu:1"}, "effort": 3000}
    for verb in (sn.plan, sn.compare_strategies):
        with pytest.raises(sn.InfeasibleError, match="where parts ask for devices or"):
            verb(chain(4), BOX, **how)


def test_what_is_fixed_is_not_faster_than_what_is_chosen():
    """Where memory lacks, parts move into the room that micro-batches leave."""
    rows = ("gpu:0", 10, 8), ("gpu:1", 17, 16), ("gpu:2", 15, 16), ("cpu", 58, 0.4)
    its = (sn.Device.of(n, memory=m * MIB, speed=f * 1e12) for n, m, f in rows)
    box, slow = sn.Cluster(tuple(its)), random_dag(5, 10)
    fixed = auto(slow, box, microbatches=8, schedule="1f1b", towers=1)
    assert auto(slow, box).seconds <= 1.02 * fixed.seconds


@pytest.mark.parametrize("graph", [wide(2), random_dag(4, 8), random_dag(5, 8)])
def test_what_a_row_says_to_type_gives_that_row(graph):
    plan, box = partial(sn.plan, effort=3000), sn.Cluster.of("3*gpu", "cpu")
    found = sn.compare_strategies(graph, box, effort=3000)
    assert len(found.all) >= 3
    for row in found.all:
        made = eval(row.how, {"plan": plan, "source": graph, "cluster": box})
        figures = made.seconds, made.transfer_bytes
        assert figures == (row.seconds, row.copied_bytes), row.how
        used = {made.device_of[call.part] for call in made.graph.calls if call.weights}
        assert (row.kind == "one device") == (len(used) == 1), row.how


def test_the_largest_batch_of_a_plan_counts_how_it_runs():
    """Micro-batches leave room for more samples than the placement at once does."""
    graph = chain(8, flops=1e12, out=8 * MIB)
    box = sn.Cluster.of("2*gpu", memory="70 MiB")
    plan = auto(graph, box, microbatches=8, schedule="1f1b", towers=1)
    most = sn.largest_batch(graph, box, device_of=plan)
    assert most >= graph.batch
    assert most > sn.largest_batch(graph, box, device_of=dict(plan.device_of))
    forward = partial(sn.largest_batch, graph, box, training=False)
    assert forward(device_of=plan) == forward(device_of=dict(plan.device_of))
    assert sn.sensitivity(plan, 0.0, draws=1).changed == 0.0  # so that it fits
    towers = auto(HEAVY, towers=2)
    assert sn.score(HEAVY, BOX, towers).value == towers.value


@pytest.mark.parametrize("seed", [1, 2])
def test_auto_is_as_good_as_trying_everything(seed):
    """Two per cent above the best of every count, schedule and placement it knows."""
    graph, fixed = random_dag(seed, 6), {"time_limit": 1.0, "effort": 20_000}
    ways = product((1, 2, 3, 4, 6, 8, 12, 16, 24, 32), SCHEDULES)
    plan = sn.plan(graph, BOX, **fixed)
    best = min(executed(plan, Execution(*way)).seconds for way in ways)
    assert auto(graph, **fixed).seconds <= 1.03 * best


@pytest.mark.parametrize("seed", [0, 3])
def test_a_pipeline_is_as_good_as_any_near_it(seed):
    """No other count, schedule or device of a part is better, nor the least load."""
    graph, box = random_dag(seed, 6), sn.Cluster.of("3*gpu", "cpu")
    plan = auto(graph, box)
    even = sn.plan(graph, box, objective="throughput", effort=3000)
    tried = [executed(plan, Execution(n, s)) for n in (2, 4, 8, 16) for s in SCHEDULES]
    tried.append(executed(sn.score(graph, box, dict(even.device_of)), Execution(16)))
    for part, device in product([*plan.device_of][1:], [one.name for one in box]):
        there = sn.score(graph, box, {**plan.device_of, part: device})
        tried.append(executed(there, plan.execution))
    assert kind(plan) == "pipeline"
    assert plan.seconds <= 1.02 * min(one.seconds for one in tried if has_room(one))
