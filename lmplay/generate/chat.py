"""Talking with a model: `--chat` and `--ask`."""
from __future__ import annotations

import sys
from contextlib import suppress

from ..command_line import replace_broken_input
from ..files import json_line, write_text
from ..paths import expanded
from ..signals import Stop, raise_stop
from ..writing.conversation import Conversation
from .writer import Writer

_HELP = """what can be typed besides questions:
  /save FILE      write the conversation to a new file: a row of chat data, which lmp_trainer can read
  /reset          forget what has been said
  /system TEXT    what the model is told before the conversation; without a text: nothing
  /help           this list
  /quit, Ctrl+D   end
Ctrl+C ends an answer, and at the beginning of a line the program."""


def answer(writer: Writer, conversation: Conversation, question: str) -> None:
    """Ask one question and print the answer as it comes.

    An answer that Ctrl+C ends is kept as far as it has come; any other request to stop ends the program.
    """
    ids, left_out = conversation.ask(question)
    if left_out:
        print(f"(the first {left_out} messages no longer fit in the context of {conversation.context_len} tokens)", file=sys.stderr)
    if len(ids) > conversation.context_len:
        print(f"(the question is longer than the context of {conversation.context_len} tokens: only its end is read)", file=sys.stderr)
    text = ""
    try:
        for step in writer.write([ids], len(conversation.said)):
            text += step[0] or ""
            print(step[0] or "", end="", flush=True)
    finally:
        conversation.answer(text)
        print(flush=True)


def converse(writer: Writer, conversation: Conversation) -> None:
    """Take questions from the terminal, or a line each from what is piped in, and answer them."""
    on_terminal = sys.stdin.isatty()
    replace_broken_input()
    if on_terminal:
        with suppress(ImportError):  # Windows has none
            import readline  # noqa: F401 - lines can be edited, and come back with the arrow keys
        print("Type a question. /help lists what else can be typed; Ctrl+D ends.", file=sys.stderr)
    while True:
        try:
            line = input("> " if on_terminal else "").strip()
        except EOFError:
            if on_terminal:
                print()
            return
        if line == "/quit":
            return
        if line.startswith("/"):
            _command(conversation, line)
        elif line:
            try:
                answer(writer, conversation, line)
            except Stop as stop:
                if stop.exit_code != 130 or not on_terminal:
                    raise
                raise_stop()


def _command(conversation: Conversation, line: str) -> None:
    """Do what a line with a slash asks for; what it says goes to the errors' stream, where no answers are."""
    name, _, rest = line.partition(" ")
    rest = rest.strip()
    if name == "/reset":
        conversation.said.clear()
        said = "what has been said is forgotten"
    elif name == "/system":
        conversation.system = rest
        said = "the model is told this before the conversation" if rest else "the model is told nothing before the conversation"
    elif name == "/save":
        said = _save(conversation, rest)
    else:
        said = _HELP if name == "/help" else f"{name}: there is no such command; /help lists them"
    print(f"({said})", file=sys.stderr)


def _save(conversation: Conversation, name: str) -> str:
    """Write a conversation to a new file; says how it went."""
    path = expanded(name)
    if not name:
        return "/save needs the name of a file: /save chat.jsonl"
    if not conversation.said:
        return "nothing has been said yet"
    try:
        if path.exists() or path.is_symlink():
            return f"{path} is there already, and is not overwritten; give another name"
        write_text(path, json_line({"messages": conversation.messages()}))
    except OSError as error:
        return f"{path} cannot be written: {error.strerror or error}"
    return f"written to {path}: {len(conversation.said)} messages"
