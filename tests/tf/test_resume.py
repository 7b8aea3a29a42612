"""Training that is interrupted and goes on as if it had not been."""

import os
import signal

import keras
import pytest
from keras import layers

import splitnet as sn
from tests.tf.check import emitted, numbers
from tests.tf.zoo import two_branches


def at(epoch, act, moment="on_epoch_begin"):
    moments = {moment: lambda now, _: now == epoch and act()}
    return keras.callbacks.LambdaCallback(**moments)


def trained(cluster, *callbacks):
    keras.utils.set_random_seed(5)
    sides = ([layers.Dense(8), layers.Dropout(0.5)] for _ in range(2))
    net = two_branches(*sides).source
    options = {"batch_size": 16, "epochs": 4, "shuffle": False, "verbose": 0}
    done = emitted(net, cluster, compiled=("adam", "mse"), batch=16).fit(
        numbers(6, count=48), numbers(2, count=48), callbacks=[*callbacks], **options
    )
    return done.history.get("loss", [])


@pytest.fixture
def reached():
    found = []
    before = signal.signal(signal.SIGTERM, lambda *_: found.append(1))
    yield found
    signal.signal(signal.SIGTERM, before)


def test_resumed_training_drops_what_it_would_have_dropped(cluster, tmp_path, reached):
    whole = trained(cluster)
    for _ in range(2):
        with pytest.raises(IndexError):
            trained(cluster, at(2, [].pop), sn.ResumeTraining(tmp_path / "backup"))
    signal.raise_signal(signal.SIGTERM)
    rest = trained(cluster, sn.ResumeTraining(tmp_path / "backup"))
    assert rest == pytest.approx(whole[2:], rel=1e-6)
    assert not (tmp_path / "backup").exists()
    assert reached == [1]


@pytest.mark.filterwarnings("ignore:the backup .* is incomplete")
@pytest.mark.parametrize(("epoch", "left"), [(0, 4), (1, 3), (2, 2), (3, 0)])
def test_termination_saves_the_step_and_exits(epoch, left, cluster, tmp_path, reached):
    """Exit code 143; killed while it saves, it begins the epoch or training anew."""
    moment = "on_epoch_begin" if left else "on_epoch_end"
    terminate = at(epoch, lambda: signal.raise_signal(signal.SIGTERM), moment)
    with pytest.raises(SystemExit) as end:
        trained(cluster, terminate, sn.ResumeTraining(tmp_path / "backup"))
    assert end.value.code == 143
    file, last = "latest.weights.h5", "training_metadata.json"
    if left:
        os.truncate(tmp_path / "backup" / (last if epoch == 2 else file), 9)
    if epoch == 0:
        (tmp_path / "backup" / last).unlink()
    assert len(trained(cluster, sn.ResumeTraining(tmp_path / "backup"))) == left
    assert reached == []
