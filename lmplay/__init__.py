"""lmplay pretrains language models from a plan.  This file stays empty of imports, so that every door opens fast."""
__version__ = "0.1.0"
