"""Declare, plan, emit, train, audit, draw: Keras models on several devices."""
