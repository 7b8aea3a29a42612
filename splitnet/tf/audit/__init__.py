"""Audits: one executed step held against its plan."""
