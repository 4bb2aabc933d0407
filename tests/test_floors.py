"""The architecture: a file imports from lower floors, and on its own floor from its own folder only."""
import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "lmplay"
# Folders (and files at the top of the package that are not ground) by floor, from the ground up.
FLOORS = [[], ["plan"], ["stats", "track"], ["plotstats"], ["data"], ["modules", "exp"], ["objectives", "optim", "writing"], ["device", "checkpoints"],
          ["report"], ["engine"], ["preview"], ["train", "generate"]]
HEAVY = {"torch", "transformers", "datasets", "matplotlib", "tokenizers", "pyarrow"}
TORCHLESS = ["plan", "stats", "track", "plotstats", "data", "train", "generate"]
# No torch before collate.
WITH_TORCH = {PACKAGE / "data" / "collate.py"}


def floor_of(part: str) -> int:
    return next((number for number, parts in enumerate(FLOORS) if part in parts), 0)


def part_of(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def imports(path: Path) -> list[tuple[str, bool]]:
    """List what a file imports from lmplay (as the part's name) and from elsewhere, with whether it is at the top of the file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = []
    package = ["lmplay", *path.relative_to(PACKAGE).parent.parts]
    typing_only = {child for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) for child in ast.walk(node)}
    for node in ast.walk(tree):
        if node in typing_only:
            continue
        top = node in tree.body
        if isinstance(node, ast.Import):
            found += [(alias.name, top) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[:len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found += [(f"{module}.{alias.name}" if node.level and module.count(".") == 0 else module, top) for alias in node.names]
    return found


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_file_imports_from_lower_floors_and_its_own_folder(path):
    mine = part_of(path)
    level = floor_of(mine)
    for module, _ in imports(path):
        parts = module.split(".")
        if parts[0] != "lmplay" or len(parts) == 1:
            continue
        theirs = parts[1]
        assert theirs == mine or floor_of(theirs) < level or (floor_of(theirs) == 0 and level == 0) or (
            {mine, theirs} <= {"modules", "exp"}), f"{path} imports {module}"


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_what_is_heavy_is_imported_where_it_is_used(path):
    mine = part_of(path)
    if path in WITH_TORCH or (mine not in TORCHLESS and floor_of(mine) > 0):
        return
    at_top = {module.split(".")[0] for module, top in imports(path) if top}
    assert not at_top & HEAVY, f"{path} imports {at_top & HEAVY} at its top"


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_torch_is_seen_from_collate_upwards_only(path):
    if path in WITH_TORCH or part_of(path) not in ("plan", "stats", "plotstats", "data"):
        return
    assert "torch" not in {module.split(".")[0] for module, _ in imports(path)}
