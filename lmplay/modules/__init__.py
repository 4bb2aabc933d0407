"""Layers that experiments build their models from."""
