"""Generating texts with a model."""
