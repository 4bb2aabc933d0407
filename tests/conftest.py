"""The hub's client reads its environment once, when it is imported: here, before a test changes it for itself."""
import os

os.environ.pop("HF_HUB_OFFLINE", None)

import huggingface_hub.constants  # noqa: F401
