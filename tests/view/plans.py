"""Plans made by hand, without a planner, so that the views are tested alone."""

from collections.abc import Callable, Mapping, Sequence

from splitnet.core.cluster import Cluster
from splitnet.core.graph import Call, Graph, Part, Tensor, Weights
from splitnet.core.plan import Fallback, Memory, Placement, Plan, Transfer, Verdict
from splitnet.core.timeline import Copy, Task, Timeline

MS = 1e-3


def task(
    part: str,
    device: str,
    phase: str,
    start: float,
    stop: float,
    microbatch: int = 0,
) -> Task:
    """A part that computes for some time."""
    return Task(part, device, phase, start, stop, microbatch)


class Draft:
    """A graph in the making: parts of one or more calls, and tensors between them."""

    def __init__(self, name: str, batch: int = 256) -> None:
        self.name = name
        self.batch = batch
        self.parts: list[Part] = []
        self.calls: list[Call] = []
        self.tensors: list[Tensor] = []
        self.weights: dict[str, Weights] = {}
        self.last: dict[str, Call] = {}

    def part(
        self,
        name: str,
        sources: Sequence[str] = (),
        kinds: Sequence[str] = ("Dense",),
        *,
        kind: str = "branch",
        shape: tuple[int, ...] = (64,),
        on: str = "auto",
        weight: str | None = None,
        weight_bytes: int = 65536,
    ) -> str:
        """Add a part: calls of `kinds` in a row, the first reading all sources."""
        self.parts.append(Part(name, kind, (on,), where="net.py:12"))
        size = 4 * self.batch
        for length in shape:
            size *= length
        before = [self.last[source] for source in sources]
        for number, layer in enumerate(kinds):
            owned: tuple[str, ...] = ()
            if weight_bytes and kind != "input":
                key = f"{weight or name + '/' + layer + str(number)}/kernel"
                self.weights.setdefault(key, Weights(key, weight_bytes, (64, 256)))
                owned = (key,)
            call = Call(
                name if len(kinds) == 1 else f"{name}/{layer.lower()}_{number}",
                name,
                layer,
                layer=weight or f"{name}_{layer.lower()}",
                output_shapes=((self.batch, *shape),),
                output_dtypes=("float32",),
                output_bytes=size,
                activation_bytes=0 if kind == "input" else size,
                forward_flops=1e6,
                backward_flops=2e6,
                weights=owned,
            )
            self.tensors += [
                Tensor(b.name, call.name, 0, b.output_shapes[0], bytes=b.output_bytes)
                for b in before
            ]
            self.calls.append(call)
            before = [call]
        self.last[name] = before[0]
        return name

    def graph(self, *outputs: str) -> Graph:
        """The finished graph."""
        return Graph(
            self.name,
            self.batch,
            tuple(self.calls),
            tuple(self.tensors),
            tuple(self.weights.values()),
            tuple(self.parts),
            tuple(self.last[name].name for name in outputs),
        )


def plan_by_hand(
    graph: Graph,
    cluster: Cluster,
    device_of: Mapping[str, str],
    *,
    fallbacks: Sequence[Fallback] = (),
    seconds: Callable[[Call], float] = lambda call: 2 * MS,
) -> Plan:
    """Put parts where the caller says; one call after another, no cleverness."""
    free = dict.fromkeys((device.name for device in cluster), 0.0)
    ready: dict[str, float] = {}
    tasks: list[Task] = []
    copies: list[Copy] = []
    transfers: list[Transfer] = []
    used = dict.fromkeys(free, 0)
    memory: dict[str, list[tuple[float, int]]] = {name: [(0.0, 0)] for name in free}
    into: dict[str, list[Tensor]] = {call.name: [] for call in graph.calls}
    for tensor in graph.tensors:
        into[tensor.target].append(tensor)
    sent: dict[tuple[str, str], float] = {}

    def move(tensor: Tensor, back: bool, now: float) -> float:
        ends = graph.call[tensor.source].part, graph.call[tensor.target].part
        source, target = ends[::-1] if back else ends
        one, other = device_of[source], device_of[target]
        key = (f"{tensor.source}<{tensor.target}" if back else tensor.source, other)
        if one == other:
            return now
        if key not in sent:
            stop = now + cluster.link(one, other).seconds(tensor.bytes)
            kind = "gradient" if back else "activation"
            phase = "backward" if back else "forward"
            copies.append(
                Copy(source, target, one, other, kind, phase, tensor.bytes, now, stop)
            )
            transfers.append(
                Transfer(source, target, one, other, kind, tensor.bytes, stop - now)
            )
            sent[key] = stop
        return sent[key]

    def run(call: Call, phase: str, start: float, length: float) -> float:
        device = device_of[call.part]
        start = max(start, free[device])
        tasks.append(task(call.part, device, phase, start, start + length))
        free[device] = start + length
        return start + length

    for call in graph.calls:
        start = max(
            (move(t, False, ready[t.source]) for t in into[call.name]), default=0.0
        )
        length = 0.0 if graph.part[call.part].kind == "input" else seconds(call)
        ready[call.name] = run(call, "forward", start, length) if length else start
        device = device_of[call.part]
        used[device] += call.activation_bytes
        memory[device].append((ready[call.name], used[device]))
    done = {call.name: max(ready.values()) for call in graph.calls}
    for call in reversed(graph.calls):
        if graph.part[call.part].kind == "input":
            continue
        stop = run(call, "backward", done[call.name], 2 * seconds(call))
        if call.weights:
            run(call, "update", stop, 0.2 * seconds(call))
        device = device_of[call.part]
        used[device] -= call.activation_bytes
        memory[device].append((stop, used[device]))
        for tensor in into[call.name]:
            if graph.part[graph.call[tensor.source].part].kind != "input":
                arrived = move(tensor, True, stop)
                done[tensor.source] = max(done[tensor.source], arrived)
    return _finished(
        graph, cluster, device_of, fallbacks, tasks, copies, transfers, memory
    )


def _finished(
    graph: Graph,
    cluster: Cluster,
    device_of: Mapping[str, str],
    fallbacks: Sequence[Fallback],
    tasks: list[Task],
    copies: list[Copy],
    transfers: list[Transfer],
    memory: Mapping[str, list[tuple[float, int]]],
) -> Plan:
    homes = {w: parts[0] for w, parts in graph.parts_of_weights.items()}
    held = dict.fromkeys(memory, 0)
    for weight, part in homes.items():
        held[device_of[part]] += graph.weight[weight].bytes
    fell = {fallback.part: fallback for fallback in fallbacks}
    placements = tuple(
        Placement(
            part.name,
            device_of[part.name],
            fell[part.name].requested if part.name in fell else part.on[0],
            "fallback"
            if part.name in fell
            else part.kind
            if part.kind != "branch"
            else "cost"
            if part.on == ("auto",)
            else "pin",
        )
        for part in graph.parts
    )
    timeline = Timeline(
        tuple(sorted(tasks, key=lambda task: (task.start, task.device))),
        tuple(copies),
        tuple(memory),
        {
            device: tuple((t, 4 * held[device] + count) for t, count in sorted(points))
            for device, points in memory.items()
        },
    )
    return Plan(
        graph,
        cluster,
        placements,
        tuple(fallbacks),
        tuple(transfers),
        {
            device: Memory(
                held[device],
                held[device],
                2 * held[device],
                timeline.peak_bytes[device] - 4 * held[device],
            )
            for device in memory
        },
        timeline,
        {weight: device_of[part] for weight, part in homes.items()},
        value=timeline.seconds,
        bound=0.9 * timeline.seconds,
        verdict=Verdict(
            timeline.seconds,
            "gpu:0",
            1.5 * timeline.seconds,
            0.9 * timeline.seconds,
            sum(transfer.bytes for transfer in transfers),
            0.25,
            ("the CPU merge 'join' costs 12%: on='gpu:0' would save it",),
        ),
    )


def one() -> Plan:
    """A single branch on a single device."""
    draft = Draft("one", 32)
    draft.part("x", kind="input", shape=(28, 28), on="cpu:0")
    draft.part("only", ["x"], ["Flatten", "Dense"], shape=(10,))
    graph = draft.graph("only")
    return plan_by_hand(graph, Cluster.of("cpu"), {"x": "cpu:0", "only": "cpu:0"})


def siamese() -> Plan:
    """Two branches that share an encoder, merged on the CPU; one fell back."""
    draft = Draft("siamese")
    draft.part("tweet_a", kind="input", shape=(140, 256), on="cpu:0")
    draft.part("tweet_b", kind="input", shape=(140, 256), on="cpu:0")
    draft.part(
        "left",
        ["tweet_a"],
        ["LSTM"],
        on="gpu:0",
        weight="encoder",
        weight_bytes=330_000,
    )
    draft.part(
        "right",
        ["tweet_b"],
        ["LSTM"],
        on="gpu:3",
        weight="encoder",
        weight_bytes=330_000,
    )
    draft.part(
        "join",
        ["left", "right"],
        ["Concatenate"],
        kind="merge",
        shape=(128,),
        on="cpu:0",
        weight_bytes=0,
    )
    draft.part("verdict", ["join"], ["Dense"], shape=(1,), on="cpu:0", weight_bytes=516)
    places = {
        "tweet_a": "cpu:0",
        "tweet_b": "cpu:0",
        "left": "gpu:0",
        "right": "gpu:1",
        "join": "cpu:0",
        "verdict": "cpu:0",
    }
    return plan_by_hand(
        draft.graph("verdict"),
        Cluster.of("gpu:0", "gpu:1", "cpu", memory="16 GiB", link="25 GB/s"),
        places,
        fallbacks=[
            Fallback("right", "gpu:3", "gpu:1", "there is no gpu:3 here; gpu:1 is free")
        ],
        seconds=lambda call: {"LSTM": 9 * MS, "Dense": 0.3 * MS}.get(
            call.kind, 0.1 * MS
        ),
    )


def towers(count: int, gpus: int = 4, names: str = "tower") -> Plan:
    """Like branches over several devices, one merge, one head."""
    draft = Draft(f"{names}s of {count}", 64)
    draft.part("pixels", kind="input", shape=(32, 32, 3), on="cpu:0")
    places = {"pixels": "cpu:0"}
    for number in range(count):
        name = f"{names}_{number}"
        draft.part(name, ["pixels"], ["Conv2D", "Pool", "Dense"], shape=(64,))
        places[name] = f"gpu:{number % gpus}"
    draft.part(
        "average",
        [f"{names}_{i}" for i in range(count)],
        ["Average"],
        kind="merge",
        weight_bytes=0,
    )
    draft.part("head", ["average"], ["Dense"], shape=(10,))
    places |= {"average": "cpu:0", "head": "gpu:0"}
    cluster = Cluster.of(f"{gpus}*gpu", "cpu", memory="16 GiB", link="25 GB/s")
    return plan_by_hand(draft.graph("head"), cluster, places)


def chain(count: int, gpus: int = 4) -> Plan:
    """A chain of like blocks, cut into one stretch per device."""
    draft = Draft(f"chain of {count}", 64)
    draft.part("tokens", kind="input", shape=(128,), on="cpu:0")
    places, before = {"tokens": "cpu:0"}, "tokens"
    for number in range(count):
        name = f"block_{number}"
        draft.part(name, [before], ["LayerNorm", "Attention", "Dense"], shape=(128, 64))
        places[name] = f"gpu:{number * gpus // count}"
        before = name
    draft.part("logits", [before], ["Dense"], shape=(128, 1000))
    places["logits"] = f"gpu:{gpus - 1}"
    cluster = Cluster.of(f"{gpus}*gpu", "cpu", memory="16 GiB", link="25 GB/s")
    return plan_by_hand(draft.graph("logits"), cluster, places)


def tangle(count: int, gpus: int = 4) -> Plan:
    """An irregular graph: unlike parts, long and short edges, no repetition."""
    draft = Draft(f"tangle of {count}", 32)
    draft.part("start", kind="input", shape=(64,), on="cpu:0")
    places, names = {"start": "cpu:0"}, ["start"]
    for number in range(count):
        sources = list(
            dict.fromkeys(
                [
                    names[max(len(names) - 1 - (number * 7) % 5, 0)],
                    names[max(len(names) - 1 - (number * 13) % 11, 0)],
                ]
            )
        )
        name = f"part_{number}"
        draft.part(
            name, sources, ["Dense"] * (1 + number % 3), shape=(32 + number % 7,)
        )
        places[name] = f"gpu:{(number // 3 + number * 5) % gpus}"
        names.append(name)
    cluster = Cluster.of(f"{gpus}*gpu", "cpu", memory="16 GiB", link="25 GB/s")
    return plan_by_hand(draft.graph(names[-1]), cluster, places)


NASTY = (
    "<script>alert(1)</script>",
    'a"b',
    "a\\nb\\l\\G",
    "two\nlines",
    "{record|<port>}",
    "&amp; &lt; &",
    "漢字かな交じり",
    "x" * 500,
    "\u202ebackwards",
    "<b>bold</b>",
    "nul\0l",
    "]]>",
    "-> {a}",
)


def nasty() -> Plan:
    """A plan whose branches are named to break DOT, HTML, XML and terminals."""
    draft = Draft('<i>net</i> & "co" \n --', 8)
    draft.part("in<put>", kind="input", on="cpu:0")
    places = {"in<put>": "cpu:0"}
    for number, name in enumerate(NASTY):
        draft.part(name, ["in<put>"], [f"<{name[:9]}>"], weight=name, on="gpu:0")
        places[name] = f"gpu:{number % 2}"
    cluster = Cluster.of("2*gpu", "cpu")
    return plan_by_hand(draft.graph(*NASTY), cluster, places)
