"""Opening a server: its socket, its models, and what answers.  Imported where a server is started."""
from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..checkpoints.trained import open_trained
from ..device.runtime import choose_device
from ..errors import UserError, printable, tell
from ..web import serving
from ..web.address import listen
from ..web.guard import Guard
from ..writing.conversation import for_conversation
from ..writing.prompting import recorded
from ..writing.sampling import Sampling
from .answers import Api, Defaults
from .asked import Limits
from .worker import Served, Worker
from .writer import sped_up


@contextmanager
def open_server(options: argparse.Namespace, paths: Sequence[Path], port: int, limits: Mapping[str, int], sampling: Sampling) -> Iterator[Callable[[], None]]:
    """Open a server; gives what runs it until it is asked to stop.

    :param port: the default port.
    :param limits: by the names of their flags.
    :param sampling: of requests that do not say how tokens are chosen.
    :raises UserError: when the address cannot be had, two models have the same name, or one cannot be read.
    """
    names = [printable(path.stem) for path in paths]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"--model: there are two models with the name {twice[0]}; requests could not tell them apart. Rename one.")
    listening = listen(options.serve, port, options.token)
    with listening.socket:
        models = {name: _open(name, path, options) for name, path in zip(names, paths, strict=True)}
        worker = Worker(models, options.batch_size, limits["limit_queue"])
        api = Api(models, worker, Defaults(sampling, tuple(options.stop or ()), options.system or ""),
                  Limits(options.max_tokens, limits["limit_tokens"], limits["limit_seconds"]), limits["limit_body"])

        def run() -> None:
            tell(f"{listening.url} serves {', '.join(models)}{'' if listening.token is None else ', with a token'}; Ctrl+C ends")
            serving.run(Guard(api.app(), listening), listening, limits["grace"], lambda: api.stop(limits["grace"]))

        try:
            yield run
        finally:
            worker.end()


def _open(name: str, path: Path, options: argparse.Namespace) -> Served:
    """Load a model."""
    trained = open_trained(path, options.raw)
    prompting = recorded(trained.tokenizer, trained.forms, options.form, options.markup)
    chat, remark = for_conversation(prompting, trained.forms)
    said = [remark] if remark else []
    if options.form is None and prompting.form != "text":
        said.append(f"a prompt is read as `--as {prompting.form}` has it, as in the training data; --as text|title|instruction|chat says otherwise")
    for line in said:
        print(f"{name}: {line}", file=sys.stderr)
    device = choose_device(options.device)
    module, draft = sped_up(trained.module.to(device), options.batch_size, guesses=True)
    return Served(name, module, draft, prompting, chat, trained.context_len, int(path.stat().st_mtime))
