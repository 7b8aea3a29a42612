"""Parallelism beyond placement: towers, shards, pipelines, recomputation, XLA."""
