"""Where and how a model runs: precision, compiled code, memory, the machine, and the ranks that train together."""
