"""What a server is asked, as OpenAI's interface has it.  Imported where a server is started; no torch.

Parameters that change nothing are taken; those that would change the text but cannot be followed are refused, unless they have their neutral value.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..data.samples import Turn
from ..errors import nearest
from ..web.guard import Refused
from ..writing.sampling import Sampling
from .server_flags import PENALTIES

# What clients send along; it says nothing about the text.
_IGNORED = {"user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "parallel_tool_calls", "stream_options"}
# What cannot be followed, with the values that ask for nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,), "presence_penalty": (0,), "logit_bias": ({},), "best_of": (1,), "echo": (False,), "suffix": ("",), "logprobs": (False,),
    "top_logprobs": (), "response_format": ({"type": "text"},), "tools": ([],), "tool_choice": ("none", "auto"), "functions": ([],),
    "function_call": ("none", "auto"), "modalities": (["text"],), "audio": (), "prediction": (), "reasoning_effort": (), "web_search_options": (),
    "verbosity": ()}
_LONGEST = 200  # characters of a value in a message

_MOST_MESSAGES = 1000
_MOST_PROMPTS = 10_000

# Lists are read to their first fault: a report of each element of a large request would take seconds and a GiB.
Ids = Annotated[list[int], Field(fail_fast=True)]
Text = Annotated[str, Field(min_length=1, max_length=256)]  # a stop text: it is looked for after each token


class _Strict(BaseModel):
    """Takes values of the right type only."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class StreamOptions(_Strict):
    """What a stream has besides the text."""

    include_usage: bool = False
    include_obfuscation: bool = False


class Request(_Strict):
    """What requests for texts and for answers have in common; None = as the server was started."""

    model: str | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=PENALTIES[0], le=PENALTIES[1])] | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    stop: Text | Annotated[list[Text], Field(max_length=16, fail_fast=True)] | None = None
    seed: Annotated[int, Field(ge=-2**63, lt=2**63)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """The texts that end a text."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with what it took."""
        return self.stream_options is not None and self.stream_options.include_usage

    def sampling(self, default: Sampling) -> Sampling:
        """Choose how tokens are chosen."""
        def chosen(name: str) -> Any:
            return getattr(default, name) if getattr(self, name) is None else getattr(self, name)

        return Sampling(*(chosen(name) for name in ("repetition_penalty", "temperature", "top_k", "top_p", "min_p")))


class CompletionRequest(Request):
    """A request for texts."""

    prompt: (str | Annotated[list[str], Field(max_length=_MOST_PROMPTS, fail_fast=True)] | Ids
             | Annotated[list[Ids], Field(max_length=_MOST_PROMPTS, fail_fast=True)])

    @property
    def prompts(self) -> list[str | list[int]]:
        """Each prompt: a text or token ids."""
        if isinstance(self.prompt, list) and self.prompt and not isinstance(self.prompt[0], int):
            return list(self.prompt)
        return [self.prompt]  # type: ignore[list-item]


class Part(_Strict):
    """A part of what is said; only texts are read."""

    type: Literal["text"]
    text: str


class Message(BaseModel):
    """What one side says.  Fields that answers of OpenAI have besides must be empty."""

    model_config = ConfigDict(strict=True, extra="allow")
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[Part], Field(fail_fast=True)]
    name: str | None = None

    @property
    def turn(self) -> Turn:
        """The message as the models' chats have it."""
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return Turn("system" if self.role == "developer" else self.role, text, self.role == "assistant")


class ChatRequest(Request):
    """A request for an answer."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=_MOST_MESSAGES, fail_fast=True)]

    def turns(self, system: str) -> list[Turn]:
        """List what has been said; `system` is told the model where the request has nothing of the kind."""
        for number, message in enumerate(self.messages):
            if further := sorted(name for name, value in (message.model_extra or {}).items() if value not in (None, [], {})):
                raise Refused(400, f"messages.{number}.{further[0]}: this server knows role and content only.", "messages", "unsupported_parameter")
        turns = [message.turn for message in self.messages]
        if turns[-1].role != "user":
            raise Refused(400, "messages: the last one must be what a user says.", "messages")
        return [*([Turn("system", system, False)] if system and all(turn.role != "system" for turn in turns) else []), *turns]


@dataclass(frozen=True)
class Limits:
    """What a request may ask for: tokens of a text by default and at most, and seconds."""

    default_tokens: int
    most_tokens: int
    seconds: float

    def tokens(self, asked: int | None) -> int:
        """Choose the most tokens of a text.

        :raises Refused: when it is asked for more than the server writes.
        """
        if asked is not None and asked > self.most_tokens:
            raise Refused(400, f"max_tokens: this server writes at most {self.most_tokens} tokens; {asked} were asked for.", "max_tokens")
        return min(self.default_tokens, self.most_tokens) if asked is None else asked


def read_request(body: dict[str, Any], kind: type[CompletionRequest] | type[ChatRequest]) -> CompletionRequest | ChatRequest:
    """Read a request.

    :raises Refused: for values that are not allowed and parameters that are unknown or cannot be followed.
    """
    asked = dict(body)
    if (tokens := asked.pop("max_completion_tokens", None)) is not None:
        if asked.get("max_tokens") not in (None, tokens):
            raise Refused(400, "max_tokens and max_completion_tokens differ: give one of them.", "max_tokens")
        asked["max_tokens"] = tokens
    for name, neutral in _NEUTRAL.items():
        value = asked.pop(name, None)
        if value is not None and not any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in neutral):
            raise Refused(400, f"{name}: this server does not have it; leave it out.", name, "unsupported_parameter")
    known = {*kind.model_fields, *_IGNORED, *_NEUTRAL, "max_completion_tokens"}
    for name in asked:
        if name not in known:
            raise Refused(400, f"{_short(name)}: there is no such parameter.{nearest(_short(name), known)}", _short(name), "unknown_parameter")
    try:
        return kind.model_validate({name: value for name, value in asked.items() if name in kind.model_fields})
    except ValidationError as error:
        raise _refused(error) from None


def _refused(error: ValidationError) -> Refused:
    """Say the first fault of a request."""
    fault = error.errors(include_url=False, include_context=False)[0]
    place = ".".join(str(part) for part in fault["loc"] if isinstance(part, int) or part in {*ChatRequest.model_fields, *CompletionRequest.model_fields,
                                                                                          *Message.model_fields, *Part.model_fields})
    name = str(fault["loc"][0])
    if name == "prompt" and fault["type"] != "missing":
        return Refused(400, "prompt: allowed is a text, a list of texts, a list of token ids, or a list of such lists; "
                            f"at most {_MOST_PROMPTS:,} prompts.", name)
    if name == "stop":
        return Refused(400, "stop: allowed is a text of at least 1 character and at most 256 characters, or a list of at most 16 such texts.", name)
    found = "" if fault["type"] == "missing" else f" (found: {_short(repr(fault['input']))})"
    return Refused(400, f"{place}: {fault['msg'][:1].lower()}{fault['msg'][1:]}{found}.", name)


def _short(text: str) -> str:
    """Cut a text that a message quotes."""
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "..."
