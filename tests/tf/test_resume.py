"""Training that is interrupted and goes on as if it had not been."""

import signal

import keras
import pytest
from keras import layers

import splitnet as sn
from tests.tf.check import emitted, numbers
from tests.tf.zoo import two_branches


class Interrupt(keras.callbacks.Callback):
    """In the second step of an epoch raise, or send this process a signal."""

    def __init__(self, epoch, number=None):
        super().__init__()
        self.epoch, self.number = epoch, number
        self.now = 0

    def on_epoch_begin(self, epoch, logs=None):
        self.now = epoch
        if epoch == self.epoch and self.number is None:
            raise RuntimeError("interrupted")

    def on_train_batch_begin(self, batch, logs=None):
        if (self.now, batch) == (self.epoch, 1) and self.number is not None:
            signal.raise_signal(self.number)


def trained(cluster, *callbacks):
    keras.utils.set_random_seed(5)
    sides = ([layers.Dense(8), layers.Dropout(0.5)] for _ in range(2))
    net = two_branches(*sides).source
    options = {"batch_size": 16, "epochs": 4, "shuffle": False, "verbose": 0}
    done = emitted(net, cluster, compiled=("adam", "mse"), batch=16).fit(
        numbers(6, count=48), numbers(2, count=48), callbacks=[*callbacks], **options
    )
    return done.history["loss"]


def test_a_resumed_training_drops_what_it_would_have_dropped(cluster, tmp_path):
    whole = trained(cluster)
    with pytest.raises(RuntimeError, match="interrupted"):
        trained(cluster, Interrupt(2), sn.ResumeTraining(tmp_path / "backup"))

    rest = trained(cluster, sn.ResumeTraining(tmp_path / "backup"))

    assert rest == pytest.approx(whole[2:], rel=1e-6)
    assert not (tmp_path / "backup").exists()


def test_a_termination_saves_the_step_and_ends_the_program(cluster, tmp_path):
    """Exit code 143; the epoch begins anew from the saved weights."""
    before = signal.getsignal(signal.SIGTERM)
    callbacks = Interrupt(1, signal.SIGTERM), sn.ResumeTraining(tmp_path / "backup")
    try:
        with pytest.raises(SystemExit) as end:
            trained(cluster, *callbacks)
    finally:
        signal.signal(signal.SIGTERM, before)

    assert end.value.code == 143
    assert len(trained(cluster, sn.ResumeTraining(tmp_path / "backup"))) == 3
