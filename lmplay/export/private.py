"""What is of this machine, and so is left out of what others get."""
from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

# A path, also in the name of an experiment.
_PATH = re.compile(r"(hf:|hf-fresh:)?((?:[/~]|\.\.?/).*)")


def shortened(value: Any) -> Any:
    """Leave the folders out of paths of this machine, in nested values; `hf:/a/b` becomes `hf:b`."""
    if isinstance(value, dict):
        return {key: shortened(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [shortened(one) for one in value]
    if not isinstance(value, str):
        return value
    found = _PATH.fullmatch(value)
    if found:
        return f"{found[1] or ''}{Path(found[2]).name}"
    return Path(value).name if os.path.isabs(value) else value
