"""The architecture: a file imports from lower floors, and on its own floor from its own room; no imports go round in a circle."""
import ast
from pathlib import Path

import pytest
from helpers import ROOT

PACKAGE = ROOT / "lmplay"
# Rooms by floor, from the ground up; what is not named is ground.
FLOORS = [[], ["plan"], ["stats", "track", "rewards"], ["plotstats"], ["data"], ["modules", "exp"], ["objectives", "optim", "writing"],
          ["device"], ["checkpoints"], ["report"], ["engine"], ["preview"], ["train", "generate", "export", "evaluate", "tools"]]
HEAVY = {"torch", "transformers", "datasets", "matplotlib", "tokenizers", "pyarrow"}
TORCHLESS = ["plan", "stats", "track", "plotstats", "data", "train", "generate", "export", "evaluate", "tools", "rewards"]
# No torch before collate.
WITH_TORCH = {PACKAGE / "data" / "collate.py"}
FILES = sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path) for path in FILES}


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def floor_of(module: str) -> int:
    return next((number for number, rooms in enumerate(FLOORS) if room_of(module) in rooms), 0)


def imports(path: Path) -> list[tuple[str, bool, bool]]:
    """List the modules that a file imports, those for type checkers too: each with whether it is at the top of the file, and whether for type checkers only."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    package = ["lmplay", *path.relative_to(PACKAGE).parent.parts]
    typing_only = {child for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) for child in ast.walk(node)}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = ".".join([*package[:len(package) - node.level + 1], *([node.module] if node.module else [])]) if node.level else node.module or ""
            names = list(dict.fromkeys(f"{module}.{alias.name}" if f"{module}.{alias.name}" in MODULES else module for alias in node.names))
        else:
            continue
        found += [(name, node in tree.body, node in typing_only) for name in names]
    return found


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_file_imports_from_lower_floors_and_its_own_room(path):
    mine = name_of(path)
    for theirs, _, _ in imports(path):
        if theirs.split(".")[0] == "lmplay" and "." in theirs:
            same = room_of(mine) == room_of(theirs) or (floor_of(mine) == floor_of(theirs) == 0) or {room_of(mine), room_of(theirs)} == {"modules", "exp"}
            assert same or floor_of(theirs) < floor_of(mine), f"{mine} imports {theirs}"


def test_no_imports_go_round_in_a_circle():
    graph = {name_of(path): {name for name, _, _ in imports(path) if name in MODULES} - {name_of(path)} for path in FILES}
    left = dict(graph)
    while free := [name for name, targets in left.items() if not targets & left.keys()]:
        for name in free:
            del left[name]
    assert not left, f"in circles, or above one: {({name: sorted(targets & left.keys()) for name, targets in left.items()})}"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_what_is_heavy_is_imported_where_it_is_used(path):
    mine = name_of(path)
    if path in WITH_TORCH or (room_of(mine) not in TORCHLESS and floor_of(mine) > 0):
        return
    at_top = {name.split(".")[0] for name, top, _ in imports(path) if top}
    assert not at_top & HEAVY, f"{mine} imports {at_top & HEAVY} at its top"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_torch_is_seen_from_collate_upwards_only(path):
    if path not in WITH_TORCH and room_of(name_of(path)) in ("plan", "stats", "plotstats", "data"):
        assert "torch" not in {name.split(".")[0] for name, _, typing_only in imports(path) if not typing_only}
