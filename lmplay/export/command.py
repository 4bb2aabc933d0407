"""What `lmp_export` does: it writes a trained model as a folder that other programs read.  What is heavy is imported once the flags are known to be right."""
from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from ..command_line import Parser
from ..errors import LmplayError, UserError, long_names_refused
from ..files import make_folder
from ..plan.settings import find_model


def run(argv: list[str] | None) -> int:
    """Write a folder.

    :param argv: arguments; None = those of the process.
    :return: the exit code: 0, or 2 for bad input.
    """
    try:
        options = _parser().read(argv)
        with long_names_refused():
            _export(options)
        return 0
    except LmplayError as error:
        for fault in error.faults if isinstance(error, UserError) else [error]:
            print(f"lmp_export: {fault}", file=sys.stderr)
        return error.exit_code


def _parser() -> Parser:
    """Describe the flags."""
    parser = Parser(prog="lmp_export", usage="%(prog)s FOLDER [flags]", description="Write a model that lmp_trainer has trained as a folder of transformers: "
                    "AutoModelForCausalLM.from_pretrained(FOLDER) opens it. Experiments hf:… can be written.")
    parser.add_argument("folder", metavar="FOLDER", help="where to write; must not exist, or be empty")
    parser.add_argument("--model", metavar="FILE", help="a model file (.lmp), or its name in --out-dir; by default the newest *_model.lmp there")
    parser.add_argument("--out-dir", metavar="FOLDER", help="where models are; by default $LMP_DATASETS, else out_gpt")
    parser.add_argument("--raw", action="store_true", help="where the run keeps an average of the weights (--ema), take the weights themselves")
    parser.further = {"raw"}
    return parser


def _export(options: argparse.Namespace) -> None:
    """Open the model, and write it whole or not at all."""
    folder = Path(options.folder).expanduser()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder}: is there and not empty; give a folder that is not there yet.")
    path = find_model(options.model, options.out_dir)
    from ..checkpoints.trained import open_trained
    from ..exp import split_name

    trained = open_trained(path, options.raw)
    if not split_name(trained.experiment)[1]:
        raise UserError(f"model {path}: is of the experiment {trained.experiment}, which transformers does not know; experiments hf:… can be written.")
    make_folder(folder.parent, "folder of the export")
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".tmp", dir=folder.parent))
    try:
        trained.module.save_pretrained(temporary)  # type: ignore[operator]
        trained.tokenizer.save_pretrained(temporary)
        if folder.exists():
            folder.rmdir()
        temporary.chmod(0o755)
        temporary.rename(folder)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror or error}).") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    print(f"{path} is written as {folder}")
