"""Parts that experiments build their models from.  Model floor."""
