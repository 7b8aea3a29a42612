"""Keras models and nets read as graphs of calls, and cloned for their devices."""
