"""Every feature gives the same numbers placed and plain; so do tuners and drawings."""

import functools
import os
import sys
from pathlib import Path
from typing import Any

import keras
import pytest

import splitnet as sn
from tests.tf.check import assert_near
from tests.tf.features import BATCH, FEATURES, PINS, compiled, data, source

pytestmark = [
    pytest.mark.tf,
    pytest.mark.slow,  # and what Keras makes h5py and NumPy say of its variables:
    pytest.mark.filterwarnings("ignore:__array__ impl:DeprecationWarning"),
]


@pytest.mark.parametrize("name", FEATURES)
def test_feature_gives_the_numbers_of_the_plain_model(
    name: str, cluster: sn.Cluster, tmp_path: Path
) -> None:
    """Placed and plain return the same to rounding, and the audit stays clean."""
    plain = source()
    plan = sn.plan(plain, cluster, batch=BATCH, pins=PINS, time_limit=0.1)
    placed = sn.emit(plain, plan)
    placed.placed_by_the_test = True
    found = []
    for model, folder in ((placed, "placed"), (plain, "plain")):
        (tmp_path / folder).mkdir()
        keras.utils.set_random_seed(1)
        found.append(FEATURES[name](model, tmp_path / folder))

    assert_near(*found)
    if not placed.run_eagerly:
        batch = keras.tree.map_structure(lambda t: t[:BATCH], data())
        if not placed.compiled:
            compiled(placed)
        sn.audit(placed, plan, batch).check()


DOT = f"""#!{sys.executable}
import pygraphviz, sys
kind, path = sys.argv[1].removeprefix("-T"), sys.argv[2]
sys.stdout.buffer.write(pygraphviz.AGraph(path).draw(format=kind, prog="dot"))
"""


def test_plot_model_draws_a_placed_model_like_the_plain_one(
    cluster: sn.Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keras wants a program named dot: here it is one that lends pygraphviz's."""
    (tmp_path / "dot").write_text(DOT)
    (tmp_path / "dot").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    plain = source()
    placed = sn.place(plain, cluster, batch=BATCH, pins=PINS, time_limit=0.1)
    pictures = []
    for number, model in enumerate((placed, plain)):
        path = tmp_path / f"{number}.png"
        keras.utils.plot_model(model, path, show_shapes=True, expand_nested=True)
        pictures.append(path.read_bytes())

    assert pictures[0].startswith(b"\x89PNG")
    assert len(pictures[0]) > 5000
    assert pictures[0] == pictures[1]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:Skipping variable loading:UserWarning")
def test_a_tuner_searches_over_placed_models(
    cluster: sn.Cluster, tmp_path: Path
) -> None:
    """KerasTuner builds, trains, saves and loads them: scores and the best as plain."""
    import keras_tuner as tuning

    x, y = data()

    def build(hp: Any, *, placed: bool) -> Any:
        keras.utils.set_random_seed(1)
        model = source()
        if placed:
            model = sn.place(model, cluster, batch=BATCH, pins=PINS, time_limit=0.1)
        rate = hp.Choice("rate", [0.1, 0.01])
        return compiled(model, optimizer=keras.optimizers.Adam(rate))

    found = []
    for placed in (False, True):
        tuner = tuning.GridSearch(
            functools.partial(build, placed=placed),
            objective=tuning.Objective("loss", "min"),
            directory=tmp_path / str(placed),
            seed=0,
        )
        tuner.search(x, y, batch_size=BATCH, shuffle=False, verbose=0)
        best = tuner.get_best_models(1)[0]
        assert (best.get_layer("right").kernel.value.device[-5:] == "CPU:2") is placed
        trials = tuner.oracle.get_best_trials(2)
        found.append([[t.score for t in trials], best(x)])

    assert_near(*found)
