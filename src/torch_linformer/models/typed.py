"""Decorators of transformers, with types."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


def typed(decorator: Any) -> Callable[[F], F]:
    """A decorator that keeps the signature of what it decorates, which its own annotations do not say."""
    return cast(Callable[[F], F], decorator)
