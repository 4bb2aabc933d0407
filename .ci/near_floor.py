"""See that the main job has learned: the final validation loss lies above the floor of its text and within 25 % of it."""
import json
import sys
from pathlib import Path

final = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["final"]
ratio = final["loss"] / final["floor"]
print(f"final validation loss {final['loss']:.3f}, floor {final['floor']:.3f}: {ratio - 1:+.1%}")
sys.exit(0 if 1 <= ratio <= 1.25 else "not within 25 % above the floor")
