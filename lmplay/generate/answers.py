"""The answers of `lmp_generator --serve`: models behind OpenAI's interface, and a page to try them.  Imported where a server is started.

A request is read, its prompts are encoded, in a thread of their own, and the texts are written by the worker (:mod:`worker`), which tells them piece by piece.
"""
from __future__ import annotations

import asyncio
import json
import secrets
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from ..errors import UserError
from ..web.guard import HANDLERS, Refused, page, read_json
from ..writing.conversation import read_turns
from ..writing.prompting import Prompting
from ..writing.sampling import Sampling
from .asked import ChatRequest, CompletionRequest, Limits, read_request
from .worker import Added, Job, Served, Worker, queue_full
from .writer import text_seed

Read = TypeVar("Read")


@dataclass(frozen=True)
class Defaults:
    """What requests are answered with that do not say otherwise."""

    sampling: Sampling
    stops: tuple[str, ...]
    system: str


class Api:
    """The answers of the server."""

    def __init__(self, models: Mapping[str, Served], worker: Worker, defaults: Defaults, limits: Limits, most_bytes: int):
        self._models, self._worker, self._defaults, self._limits, self._most_bytes = models, worker, defaults, limits, most_bytes
        self._encoder = ThreadPoolExecutor(1, "lmp_generator reads")  # a long prompt keeps nobody but the next prompt waiting
        self._page = page((Path(__file__).parent / "page.html").read_text(encoding="utf-8"))
        self._is_ending = False
        self._requests = 0  # that are being read or written

    def app(self) -> Starlette:
        """Build the application."""
        return Starlette(exception_handlers=HANDLERS, routes=[
            Route("/", self.get_page), Route("/health", self.health), Route("/v1/models", self.list_models), Route("/v1/models/{name:path}", self.get_model),
            Route("/v1/completions", self.complete, methods=["POST"]), Route("/v1/chat/completions", self.chat, methods=["POST"])])

    def stop(self, grace: float) -> None:
        """Take no more requests; what is being written has some seconds to end."""
        self._is_ending = True
        self._worker.close()
        asyncio.get_running_loop().call_later(grace, self._worker.end, 0)

    async def get_page(self, request: Request) -> Response:
        """Answer with the page."""
        return self._page

    async def health(self, request: Request) -> Response:
        """Say whether the server takes requests, and what it is doing."""
        written, waiting = self._worker.counts()
        status = "ending" if self._is_ending else "failed" if self._worker.has_failed else "ok"
        return JSONResponse({"status": status, "models": [*self._models], "written": written, "waiting": waiting}, 200 if status == "ok" else 503)

    async def list_models(self, request: Request) -> Response:
        """List the models."""
        return JSONResponse({"object": "list", "data": [_describe(served) for served in self._models.values()]})

    async def get_model(self, request: Request) -> Response:
        """Describe a model."""
        return JSONResponse(_describe(self._find(request.path_params["name"])))

    async def complete(self, request: Request) -> Response:
        """Continue prompts."""
        with self._admitted() as until:
            body = await read_json(request, self._most_bytes)
            asked = await self._aside(lambda: read_request(body, CompletionRequest))
            assert isinstance(asked, CompletionRequest)
            served = self._find(asked.model)
            prompts = asked.prompts
            self._check_count(len(prompts) * (asked.n or 1))
            ids = await self._aside(lambda: [self._prompt_ids(served, prompt) for prompt in prompts])
            return await self._answer(request, asked, served, served.prompting, ids, until)

    async def chat(self, request: Request) -> Response:
        """Answer a conversation."""
        with self._admitted() as until:
            body = await read_json(request, self._most_bytes)
            asked = await self._aside(lambda: read_request(body, ChatRequest))
            assert isinstance(asked, ChatRequest)
            served, turns = self._find(asked.model), asked.turns(self._defaults.system)
            self._check_count(asked.n or 1)
            ids = await self._aside(lambda: [read_turns(served.chat, turns)])
            return await self._answer(request, asked, served, served.chat, ids, until)

    @contextmanager
    def _admitted(self) -> Iterator[float]:
        """Count a request, from its arrival on; gives the time until which its texts may be written.

        :raises Refused: 429 when twice as many are there as can be written and wait: the others are being read.
        """
        if self._requests >= 2 * self._worker.most_texts:
            raise queue_full(2 * self._worker.most_texts, "requests are there")
        self._requests += 1
        try:
            yield time.monotonic() + self._limits.seconds
        finally:
            self._requests -= 1

    def _find(self, name: str | None) -> Served:
        """Find a model; where there is one only, it need not be named."""
        if name is None and len(self._models) == 1:
            return next(iter(self._models.values()))
        if name is None:
            raise Refused(400, f"model: is missing; there are {', '.join(self._models)}.", "model")
        if name not in self._models:
            raise Refused(404, f"There is no model {name[:200]!r}; there is {', '.join(self._models)}.", "model", "model_not_found")
        return self._models[name]

    def _check_count(self, texts: int) -> None:
        """Refuse requests for more texts than there can ever be."""
        if texts > self._worker.most_texts:
            raise Refused(400, f"{texts} texts are asked for; this server takes at most {self._worker.most_texts} at once.", "n")

    def _prompt_ids(self, served: Served, prompt: str | list[int]) -> list[int]:
        """Turn a prompt into token ids."""
        if isinstance(prompt, str):
            return served.prompting.ids(prompt)
        most = served.prompting.tokenizer.vocab_size
        if not prompt or not all(0 <= token < most for token in prompt):
            raise Refused(400, f"prompt: allowed are lists of at least one token id from 0 to {most - 1}.", "prompt")
        return prompt

    async def _aside(self, work: Callable[[], Read]) -> Read:
        """Read a request or its prompts, beside the event loop."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._encoder, work)
        except UserError as error:  # a chat template that does not write these turns
            raise Refused(400, str(error)) from None

    async def _answer(self, request: Request, asked: CompletionRequest | ChatRequest, served: Served, prompting: Prompting,
                      prompts: list[list[int]], until: float) -> Response:
        """Let texts be written, and answer with them."""
        for ids in prompts:
            if len(ids) > served.context_len:
                raise Refused(400, f"This model's context is {served.context_len} tokens; the prompt has {len(ids)}. Shorten it.",
                              "messages" if isinstance(asked, ChatRequest) else "prompt", "context_length_exceeded")
        stops = (*asked.stops, *self._defaults.stops, *await self._aside(lambda: prompting.stop_texts))
        seed = secrets.randbits(63) if asked.seed is None else asked.seed
        told, loop = asyncio.Queue[tuple[int, Added | Refused]](), asyncio.get_running_loop()

        def job(number: int, ids: Sequence[int]) -> Job:
            def tell(event: Added | Refused) -> None:
                with suppress(RuntimeError):  # the server has ended meanwhile
                    loop.call_soon_threadsafe(told.put_nowait, (number, event))

            return Job(served.name, ids, prompting, asked.sampling(self._defaults.sampling), text_seed(seed, number), self._limits.tokens(asked.max_tokens),
                       stops, until, tell)

        jobs = [job(number, ids) for number, ids in enumerate(ids for ids in prompts for _ in range(asked.n or 1))]
        form = _Form(isinstance(asked, ChatRequest), served.name, len(jobs), sum(map(len, prompts)))
        self._worker.submit(jobs)
        gone = asyncio.create_task(_until_gone(request))

        def give_up(_: asyncio.Task[None]) -> None:
            self._worker.cancel(jobs)
            told.put_nowait((0, Refused(499, "The client has gone.")))

        gone.add_done_callback(give_up)
        if asked.stream:
            return StreamingResponse(_stream(told, form, asked.includes_usage, gone), media_type="text/event-stream")
        try:
            while form.is_open:
                number, event = await told.get()
                if isinstance(event, Refused):
                    raise event
                form.take(number, event)
        finally:
            gone.cancel()
        return JSONResponse(form.whole())


@dataclass
class _Form:
    """The texts of an answer, and how OpenAI's interface writes them."""

    is_chat: bool
    model: str
    count: int
    prompt_tokens: int
    tokens: int = 0
    created: int = field(default_factory=lambda: int(time.time()))
    identity: str = field(default_factory=lambda: uuid.uuid4().hex)
    texts: dict[int, str] = field(default_factory=dict)
    finished: dict[int, str] = field(default_factory=dict)

    @property
    def is_open(self) -> bool:
        """Whether more is to come."""
        return len(self.finished) < self.count

    def take(self, number: int, added: Added) -> None:
        """Add a piece to a text."""
        self.texts[number] = self.texts.get(number, "") + added.text
        self.tokens += added.tokens
        if added.finish is not None:
            self.finished[number] = added.finish

    def usage(self) -> dict[str, int]:
        """Count the tokens."""
        return {"prompt_tokens": self.prompt_tokens, "completion_tokens": self.tokens, "total_tokens": self.prompt_tokens + self.tokens}

    def whole(self) -> dict[str, Any]:
        """Write the whole answer."""
        choices = [{"index": number, "finish_reason": self.finished[number], "logprobs": None,
                    **({"message": {"role": "assistant", "content": text, "refusal": None}} if self.is_chat else {"text": text})}
                   for number, text in sorted(self.texts.items())]
        return {**self._head(""), "choices": choices, "usage": self.usage()}

    def begin(self, number: int) -> dict[str, Any]:
        """Write the piece that comes before the text of an answer."""
        return {**self._head(".chunk"), "choices": [{"index": number, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}]}

    def piece(self, number: int, text: str, finish: str | None) -> dict[str, Any]:
        """Write a piece of a text."""
        content = {"delta": {"content": text} if text else {}} if self.is_chat else {"text": text}
        return {**self._head(".chunk"), "choices": [{"index": number, **content, "logprobs": None, "finish_reason": finish}]}

    def last(self) -> dict[str, Any]:
        """Write what a stream ends with where its usage was asked for."""
        return {**self._head(".chunk"), "choices": [], "usage": self.usage()}

    def _head(self, chunk: str) -> dict[str, Any]:
        kind = f"chat.completion{chunk}" if self.is_chat else "text_completion"
        return {"id": f"{'chatcmpl' if self.is_chat else 'cmpl'}-{self.identity}", "object": kind, "created": self.created, "model": self.model}


async def _stream(told: asyncio.Queue[tuple[int, Added | Refused]], form: _Form, includes_usage: bool, gone: asyncio.Task[None]) -> AsyncIterator[str]:
    """Write the pieces of texts as events, as they come."""
    try:
        if form.is_chat:
            for number in range(form.count):
                yield _event(form.begin(number))
        while form.is_open:
            number, event = await told.get()
            if isinstance(event, Refused):
                yield _event(event.to_json())
                return
            form.take(number, event)
            if event.text or event.finish is not None:
                yield _event(form.piece(number, event.text, event.finish))
        if includes_usage:
            yield _event(form.last())
        yield "data: [DONE]\n\n"
    finally:
        gone.cancel()  # which gives up what is still being written


async def _until_gone(request: Request) -> None:
    """Wait until the client has closed its connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"


def _describe(served: Served) -> dict[str, Any]:
    """Describe a model as OpenAI's interface does; the last two are our own."""
    return {"id": served.name, "object": "model", "created": served.created, "owned_by": "lmplay", "context_length": served.context_len,
            "form": served.prompting.form}
