"""What the parts of a plan are made of: strict objects with keys, and checks that several of them have.  Plan floor, no torch."""
from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, ClassVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from ..words import number
from .options import FLAGS, MOST, Number

SHORT_NUMBER = r"[0-9][0-9_]*(\.[0-9]+)?[kMB]"
_FLAGS = {flag.name: flag for flag in FLAGS}


def option(title: str, allowed: str, **limits: Any) -> Any:
    """Make a field that may be left out (None), with a title for what the key is for, what it may hold in plain words, and limits of :func:`pydantic.Field`."""
    return Field(default=None, title=title, description=allowed, **limits)


def flag_key(name: str, level: str, allowed: str = "", **more: Any) -> Any:
    """Make a field for a key that is a flag too: title and limits are those of the table of flags.

    :param level: where the key is, see :class:`lmplay.plan.options.Flag`.
    :param allowed: what it may hold, in plain words, where that is not just a number.
    :param more: other arguments of :func:`pydantic.Field`.
    """
    title, check = _FLAGS[name].keys[level], _FLAGS[name].check
    return option(title, check.allowed_in_plan, **check.limits, **more) if isinstance(check, Number) and not allowed else option(title, allowed, **more)


def one_of(names: Callable[[], Iterable[str]], other: re.Pattern[str] | None = None) -> AfterValidator:
    """Make a check that accepts the names that a table has when it runs, and what matches the `other` pattern."""
    def check(value: str) -> str:
        allowed = list(names())
        if value not in allowed and not (other and other.fullmatch(value)):
            raise PydanticCustomError("unknown_name", "one of {expected}", {"expected": ", ".join(map(repr, allowed))})
        return value

    return AfterValidator(check)


def listed(value: Any) -> Any:
    """Wrap a single source in a list."""
    return [value] if isinstance(value, (str, dict, BaseModel)) else value


def _types(annotation: Any) -> set[Any]:
    """List the plain types of an annotation such as `int | None`."""
    inner = get_args(annotation)
    return {annotation} if not inner else set().union(*map(_types, inner[:1] if hasattr(annotation, "__metadata__") else inner))


def key_of(part: Any, key: str) -> Any:
    """Read a key of a part, parsed or not yet; None when not given."""
    return part.get(key) if isinstance(part, dict) else getattr(part, key, None)


Count = Annotated[int, Field(ge=1, le=MOST)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Text = Annotated[str, Field(min_length=1)]


class Part(BaseModel):
    """A strict, frozen object: unknown keys are faults, and no value is converted to another type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, defer_build=True)
    short_forms: ClassVar[dict[type, str]] = {}

    @classmethod
    def conflicts(cls, given: dict[str, Any]) -> Iterator[tuple[str, str]]:
        """Find keys that contradict each other: pairs of a key and its fault.

        :param given: the keys that are not None, parsed or as written (their own faults are reported elsewhere).
        """
        return iter(())

    @classmethod
    def keys_beside(cls, given: Any) -> list[str]:
        """List the keys that can stand beside others, for a message about one that there is not.

        :param given: the part as written.
        """
        return [str(field.alias or name) for name, field in cls.model_fields.items()]

    @classmethod
    def written_out(cls, value: Any) -> Any:
        """Write out a short form: a plain value stands for an object with one key."""
        key = cls.short_forms.get(type(value))
        return value if key is None else {key: value}

    @model_validator(mode="before")
    @classmethod
    def _write_out(cls, value: Any) -> Any:
        return cls.written_out(value)

    @field_validator("*", mode="before")
    @classmethod
    def _whole(cls, value: Any, info: ValidationInfo) -> Any:
        """Convert a float such as 1e6 to the whole number it is, as JSON Schema does, and a text such as "10k" where a whole number belongs."""
        if isinstance(value, str) and re.fullmatch(SHORT_NUMBER, value) and int in _types(cls.model_fields[str(info.field_name)].annotation):
            value = number(value)
        return int(value) if isinstance(value, float) and value.is_integer() else value

    @model_validator(mode="after")
    def _refuse_conflicts(self) -> Part:
        for key, fault in self.conflicts({key: value for key, value in self if value is not None}):
            raise ValueError(f"{key}: {fault}")
        return self
