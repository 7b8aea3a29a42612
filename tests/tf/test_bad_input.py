"""Bad input: an error that says what, where and what to do; nothing half-done."""

import functools
import random
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import splitnet as sn
from tests.tf.check import emitted, stack


class Broken(layers.Layer):
    def build(self, shape):
        raise RuntimeError("out of patience")


HIDDEN = layers.Dense(3, name="hidden")
SLY = layers.Lambda(lambda t: HIDDEN(t), name="sly")
ONE_OF = "it must be a layer (an instance, no class)"


def declared(body, *, dtype="float32", then=None):
    """A net of one branch, and of a second one that reads what `then` takes of it."""
    net = sn.Net("bad")
    last = net.branch("a", net.input("x", (6,), dtype=dtype), body)
    if then is not None:
        last = net.branch("b", then(last), layers.Dense(3, name="same"))
    net.output(last)
    return net


def nested(then):
    return declared(lambda t: {"p": (t, t)}, then=then)


# The words of a message, and what it is about.
BODIES = {
    "Reshape.call(). The total size": layers.Reshape((5,)),  # Keras prints it in bold
    "its body returned None; it must return a tensor, or": lambda t: None,
    "its body returned (); it must return": lambda t: (),
    f"its body is []; {ONE_OF}": [],
    f"Dense'>; {ONE_OF}": layers.Dense,
    f"its body is None; {ONE_OF}": None,
    "to inputs of shape (None, 6): RuntimeError: out of patience": Broken(name="b"),
    "applied to inputs of shape (None, 6): ValueError": layers.Conv2D(3, 3),
    "AttributeError": lambda t: t.no_such_thing,
    "layer 'sly' (Lambda) hides variables from Keras: hidden": SLY,
}
NETS = {
    "floaty": lambda: declared(layers.Dense(2), dtype="floaty"),
    "dtype 7": lambda: declared(layers.Dense(2), dtype=7),
    'The name "same" is used 2 times in the model': lambda: declared(
        layers.Dense(3, name="same"), then=lambda ref: ref
    ),
    "branch 'a' has no output 'no'; it returned": lambda: nested(lambda r: r["no"]),
    "branch 'a' has no output 5": lambda: nested(lambda ref: ref["p"][5]),
    "no output 0; it": lambda: declared(layers.Dense(2), then=lambda ref: ref[0]),
    "has one output": lambda: declared(layers.Dense(2), then=lambda ref: [*ref]),
}


@pytest.mark.parametrize("words", [*BODIES, *NETS])
def test_an_impossible_declaration_is_told(words):
    with pytest.raises(sn.DeclarationError, match=re.escape(words)) as caught:
        sn.read(NETS[words]() if words in NETS else declared(BODIES[words]))
    if not words.startswith(("The name", "has one output")):
        assert "test_bad_input.py:" in str(caught.value)


def test_faults_of_bodies_come_all_at_once():
    """What Keras refuses and what the declaration lacks are in one error."""
    net = sn.Net("bad")
    x = net.input("x", (6,))
    net.input("idle", (2,))
    a = net.branch("a", x, layers.Conv2D(3, 3))
    b = net.branch("b", x, lambda t: None, on="gpx")
    net.output(net.merge("both", [a, b], layers.Add()))
    with pytest.raises(sn.DeclarationError, match=r"^net 'bad' has 4 faults\.") as told:
        sn.read(net)
    for words in ("input 'idle'", "branch 'a'", "branch 'b'", "on='gpx'"):
        assert words in str(told.value)


def test_another_batch_than_the_models_own_is_told():
    """A model of a fixed batch size is planned for that one alone; none larger fits."""
    box = functools.partial(sn.Cluster.of, "2*gpu", "cpu", memory=0)
    model = stack(layers.Dense(2), batch_shape=(8, 6))
    assert sn.plan(model, box(), batch=8, effort=1).batch == 8
    with pytest.raises(sn.DeclarationError, match=r"fixed batch size of 8.*batch=8"):
        sn.plan(model, box())
    for source, memory, batch in ((lambda: model, "1 MiB", 8), (model, "100 B", 0)):
        assert sn.largest_batch(source, box(cpu_memory=memory)) == batch
    with pytest.raises(sn.InfeasibleError, match="try +[0-9.]+ times the memory"):
        sn.plan(model, box(cpu_memory="400 B"), batch=8, effort=1)


def odd(kind, *args, **attached):
    layer = kind(*args, name="odd")
    for name, value in attached.items():
        setattr(layer, name, value)
    return layer


def around(layer, first=None):
    x = keras.Input((3,), name="x")
    seen = (first or layers.Dense(3, name="first"))(x)
    return keras.Model(x, layers.Dense(2, name="last")(layer(seen)), name="odd")


def fingerprint(model):
    inside = model._flatten_layers()
    return [
        sorted(vars(model)),
        [(layer.name, sorted(vars(layer))) for layer in inside],
        [(len(la._inbound_nodes), len(la._outbound_nodes)) for la in inside],
        [(v.path, v.numpy().tolist()) for v in model.variables],
        model.compiled,
        random.getstate(),
    ]


class Attached(layers.Layer):
    def call(self, inputs):
        return self.function(inputs)


def test_layer_that_hides_variables_is_named(cluster):
    """Keras lets them pass and loses them when it saves; a copy would lose them too."""
    dense = layers.Dense(3, name="kept")
    dense.build((None, 3))
    variable, held = tf.Variable(np.ones(3, "float32"), name="kept"), {"a": [dense]}

    def helper(t):
        return held["a"][0](t)

    functions = [lambda t: t * variable, lambda t: helper(t) + 1, dense.call]
    functions.append(functools.partial(lambda layer, t: layer(t), dense))
    functions.append(lambda t, layer=dense: layer(t))
    hiding = [layers.Lambda(function, name="odd") for function in functions]
    for layer in [*hiding, odd(Attached, function=tf.abs, kept=variable)]:
        model, words = around(layer), "hides variables from Keras: kept"
        before = fingerprint(model)
        with pytest.raises(sn.DeclarationError, match="Make them with add_wei") as told:
            sn.place(model, cluster, batch=4, time_limit=0.1)
        assert fingerprint(model) == before
        assert f"layer 'odd' ({type(layer).__name__}) {words}" in str(told.value)


def test_lambda_without_variables_is_fine(cluster):
    """Constants and helpers hide nothing; an input that nothing reads stays one."""
    scale, relu = np.float32(2), layers.ReLU()
    relu.build((None, 3))
    x, idle = keras.Input((3,), name="x"), keras.Input((2,), name="idle")
    body = layers.Lambda(lambda t: relu(keras.ops.abs(t)) * scale, name="open")
    layers.ReLU()(idle)  # outside of the model: Keras before 3.14 demands it
    model = keras.Model([x, idle], layers.Dense(2)(body(x)))
    given = [np.ones((2, 3), "float32"), np.ones((2, 2), "float32")]
    np.testing.assert_array_equal(emitted(model, cluster)(given), model(given))


class Silent(Attached):
    """A layer that tells nothing of its arguments."""

    def __init__(self, function, **more):
        super().__init__(**more)
        self.function = function


class Forgetful(layers.Layer):
    """Its configuration lacks what the layer inside depends on, and a factor."""

    def __init__(self, units=2, factor=1.0, kept=None, slope=0.1, **more):
        super().__init__(**more)
        self.inside, self.factor = layers.Dense(units, use_bias=False), factor
        self.kept, self.leak = kept, layers.LeakyReLU(abs(slope))
        self.box = [functools.partial(lambda x, k=slope > 0: x)]

    def call(self, inputs):
        return self.factor * self.inside(inputs)

    def get_config(self):
        return layers.Layer.get_config(self)


ABS = keras.ops.abs


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda _: odd(Silent, lambda t: t + 1), "odd: NotImplementedError"),
        (lambda first: odd(Silent, first), "odd: NotImplementedError"),
        (lambda _: odd(Forgetful, 5), r"odd: its variables are kernel\(3, 5\), the"),
        (lambda _: odd(Attached, function=ABS), "odd: a copy cannot be called: Att"),
        (lambda _: odd(Forgetful, 2, 2.0), "odd: factor is 2.0 .float., in the copy"),
        (lambda _: odd(Forgetful, 2, np.ones(2)), r"odd: factor is array\("),
        (lambda _: odd(Forgetful, 2, tf.ones(2)), "odd: factor is <tf.Tensor"),
        (lambda _: odd(Forgetful, kept=ABS), "odd: kept is <function abs"),
        (lambda _: odd(Forgetful, 2, 1.0, None, 0.5), "odd: negative_slope is 0.5"),
        (lambda _: odd(Forgetful, 2, 1.0, None, -0.1), r"odd: box is \["),
        (lambda _: odd(Forgetful, kept=lambda: HIDDEN), "odd: it holds hidden where"),
        (lambda _: odd(Forgetful, _hidden=2.0), "odd: _hidden is 2.0 .float., in the"),
        (lambda _: odd(Forgetful, kept=(1, [2])), r"odd: kept is \(1, \[2\]\) "),
        (lambda _: odd(layers.ReLU, call=lambda inputs: -inputs), "odd: call is <fun"),
    ],
)
def test_layer_that_its_config_forgets_is_used_itself(make, why, cluster, tmp_path):
    """The very layer runs, and one that it shares; one warning and the plan say so."""
    x, first = np.ones((2, 3), "float32"), layers.Dense(3, name="first")
    model = around(make(first), first)
    plain = model(x)
    with pytest.warns(UserWarning, match=f"(?s)cannot be rebuilt.*{why}"):
        placed = emitted(model, cluster, pins={"first": "gpu:2", "odd": "gpu:1"})
    plan = sn.plan_of(placed)
    plan.save(tmp_path / "plan.json")
    assert re.match(why, f"odd: {plan.reused['odd']}")
    assert sn.load_plan(tmp_path / "plan.json").reused == plan.reused
    assert "the source's own layer" in sn.table(plan)
    shared = [one.name for one in model.layers if one in placed.layers]
    assert sorted(shared) == sorted(plan.reused)
    assert len(placed.weights) == len(model.weights)
    with pytest.warns(UserWarning, match="source's are used\\.\n"):
        sn.unplace(placed)  # takes the layer as well, and leaves it where it is
    on = {(w.path.partition("/")[0], w.value.device[-5:]) for w in placed.weights}
    assert {at for at in on if at[0] == "first"} == {("first", "CPU:3")}
    assert {at for at in on if at[0] == "odd"} <= {("odd", "CPU:2")}
    np.testing.assert_array_equal(placed(x), plain)


def compiled():
    model = around(layers.Dense(2, name="odd"))
    model.compile("adam", "mse")
    return model


def test_layer_of_a_function_that_its_config_forgets_is_made_on_its_device(cluster):
    """Nobody else has it, so nothing is told."""
    placed = emitted(lambda: around(odd(Forgetful, 5)), cluster, pins={"odd": "gpu:1"})
    assert sn.plan_of(placed).reused == {}
    assert placed.get_layer("odd").inside.kernel.value.device[-5:] == "CPU:2"
    sn.audit(placed, None, np.ones((2, 3), "float32")).check()
    assert emitted(compiled, cluster).compiled


class Own(keras.Model):
    """Functional inside, with a call of its own."""

    def call(self, inputs, training=None):
        return 2 * super().call(inputs, training=training)


class Steps(keras.Sequential):
    """Sequential, with a step of its own."""

    def train_step(self, data):
        return {}


CALLED = "'mine' .Own. is subclassed: its call is code.*body of a branch"
OWN_STEP = "'mine' .Steps. is subclassed: its train_step is .*Model.inputs, out"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (lambda: Own(x := keras.Input((3,)), layers.Dense(2)(x), name="mine"), CALLED),
        (lambda: Steps([keras.Input((3,)), layers.Dense(2)], name="mine"), OWN_STEP),
        (lambda: keras.Sequential([layers.Dense(2)], name="s"), "'s' is not built"),
        (lambda: 42, "a model is a splitnet.Net, a keras.Model, or .* Received: 42"),
    ],
)
def test_a_source_without_calls_is_told(source, words):
    """Code beside the graph, or no graph at all."""
    with pytest.raises(sn.DeclarationError, match=words):
        sn.read(source())


def test_a_failed_emission_leaves_the_model_as_it_was(cluster):
    source, other = (around(layers.Dense(n, name="h")) for n in (4, 5))
    plan = sn.plan(other, cluster, time_limit=0.1)
    before = fingerprint(source)
    with pytest.raises(sn.DeclarationError, match="in the plan only: 'h'"):
        sn.emit(source, plan)
    with (
        tf.distribute.OneDeviceStrategy("CPU:0").scope(),
        pytest.raises(sn.DeclarationError, match="outside of its scope"),
    ):
        sn.emit(other, plan)
    assert fingerprint(source) == before
