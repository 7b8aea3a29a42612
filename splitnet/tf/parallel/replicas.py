"""Which calls of a placed model run on towers."""

from collections.abc import Mapping
from dataclasses import dataclass

from splitnet.core.plan import Plan
from splitnet.core.replication import tower_part, towers_in, weights_part
from splitnet.tf.internals import keras_api
from splitnet.tf.reading.flatten import Flow

__all__ = ["Replicas", "leaving", "replicas_of"]


@dataclass(frozen=True, slots=True)
class Replicas:
    """The keys of one branch's towers, of its weights' home and of its join."""

    keys: tuple[str, ...]
    home: str
    join: str
    synchronised: bool
    broadcast: frozenset[str]

    @property
    def count(self) -> int:
        """How many towers there are."""
        return len(self.keys)

    def feeds(self, others: "Replicas") -> bool:
        """Whether tower i of these hands its own samples to tower i of the others."""
        same = self.count == others.count and self.join not in others.broadcast
        return self.join == others.join or same


def leaving(flow: Flow, replicas: Mapping[int, Replicas]) -> frozenset[int]:
    """The tensors of towers, by id, that others read or that the model returns."""
    found = {id(t) for t in flow.outputs}
    for node in flow.nodes:
        mine = replicas.get(id(node))
        for tensor in node.input_tensors:
            theirs = replicas.get(id(keras_api.producer(tensor)))
            if theirs is not None and (mine is None or not theirs.feeds(mine)):
                found.add(id(tensor))
    return frozenset(found)


def replicas_of(plan: Plan, keys: Mapping[str, str]) -> dict[str, Replicas]:
    """The towers of a plan by the name of their part, in the keys of its marks."""
    return {
        name: Replicas(
            tuple(keys[tower_part(name, i)] for i in range(one.count)),
            keys.get(weights_part(name), keys[name]),
            keys[name],
            one.batch_norm == "synchronised",
            frozenset(keys[part] for part in one.broadcast if part in keys),
        )
        for name, one in towers_in(plan.graph).items()
    }
