"""Keras models that nobody declared, each with a batch and what to train it on.

Shared by `test_models` and by `benchmarks/zoo.py`. They are small and each is built so
that something in it could break when it is split: what it is named for.
"""

from tests.tf.models import odd, tables, text, vision  # they register themselves
from tests.tf.models.subject import MODELS, Subject, made_up

__all__ = ["MODELS", "Subject", "made_up", "odd", "tables", "text", "vision"]
