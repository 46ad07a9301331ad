"""Where a chat template runs: jinja2's immutable sandbox, with bounds on time and size.

A template comes out of a model file and is not trusted. It can neither reach Python's internals nor change what it
is given. Every iteration of a loop, every call, filter, attribute, subscript, and every operator that can grow a
value, looks at the clock and at the size of what it made.

Not covered: one single built-in operation that runs long within the bounds on its operands, and memory that many
values just below the bound take together.
"""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any, Final, NoReturn, cast

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MAX_CHARACTERS: Final = 1 << 22
"""How long a rendered prompt, and anything that a template makes on the way, may be.

One operation on so much text keeps every other thread waiting for less than a lease of 2 s; on four times as much, a
Coordinator was seen to lose its Nodes.
"""
MAX_SECONDS: Final = 10.0
_MAX_INTEGER_BITS = 4096
_MAX_WIDTH = 99_999
_WIDENING = frozenset({"batch", "center", "indent", "slice", "tojson"})
"""Filters whose numbers say how much to write."""
_CONVERSION = re.compile(r"%(?:\([^)]*\))?(?P<spec>[-+ #0-9.*]*)")
"""One conversion of a `%` format."""
_FIELD = re.compile(r"\{[^{}:]*:(?P<spec>[^{}]*\{?)")
"""One field of a `str.format`; with a brace at the end where its specification holds a field itself."""
_EACH, _CONCATENATE = "each of a loop", "concatenate"
"""Filters that the template's author cannot name: the names are not identifiers."""


class Refused(Exception):
    """The template called `raise_exception`: it does not take this conversation. Holds the template's words."""


class BoundExceeded(Exception):
    """The template ran too long, or made something too large."""


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """The environment that chat templates are written for, as transformers sets it up, with bounds.

    Blocks leave no blank lines; `loopcontrols` and the `generation` tag are there; `tojson` writes plain JSON;
    `raise_exception`, `strftime_now`, `namespace`, `dict` and `range` are callable. `now` is the clock behind
    `strftime_now`, `clock` (seconds) the one behind the bound on time.
    """

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, now: Callable[[], datetime], clock: Callable[[], float] = time.monotonic) -> None:
        # Not optimized: constants are not folded, so that nothing of a template runs while it is compiled.
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            finalize=_writable,
            extensions=[loopcontrols, GenerationTag],
        )
        self._clock = clock
        self._deadline: ContextVar[float] = ContextVar("deadline", default=float("inf"))
        self.filters["join"] = self._join
        for name, function in self.filters.items():
            self.filters[name] = self._bounded(name, function)
        self.filters["tojson"] = self._bounded("tojson", _to_json)
        self.filters[_EACH] = self._each
        self.filters[_CONCATENATE] = self._concatenate
        del self.globals["lipsum"]
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda layout: now().strftime(layout)
        self.globals["namespace"] = PublicNamespace
        self.globals["dict"] = lambda *arguments, **items: dict(*arguments, **items)

    @contextmanager
    def within(self, seconds: float = MAX_SECONDS) -> Iterator[None]:
        """Start the clock for one rendering."""
        token = self._deadline.set(self._clock() + seconds)
        try:
            yield
        finally:
            self._deadline.reset(token)

    def check(self, made: object = None) -> Any:
        """Return `made`. Raises BoundExceeded when time is up or it is too large."""
        if self._clock() > self._deadline.get():
            raise BoundExceeded("it runs too long")
        if isinstance(made, Sized) and not isinstance(made, range) and len(made) > MAX_CHARACTERS:
            raise BoundExceeded(f"it makes something of more than {MAX_CHARACTERS:,} elements")
        return made

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Return an attribute or element, within the bounds."""
        self.check()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Return an element or attribute, within the bounds."""
        self.check()
        return super().getitem(obj, argument)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 - as in jinja2
        """Call something, within the bounds."""
        text = getattr(__obj, "__self__", None)
        if isinstance(text, str):
            _check_widths(args, kwargs)
            args = _checked_arguments(text, __obj.__name__, args)
        __self.check()
        return __self.check(super().call(__context, __obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return jinja2's stand-in for a text's `format` and `format_map` (None for everything else), bounded."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        _check_format(value.__self__, _FIELD)
        text, written = value.__self__, wrapped

        def bounded(*arguments: Any, **fields: Any) -> str:
            _check_fields(text.count("{"), (*arguments, *fields.values()))
            return written(*arguments, **fields)

        return bounded

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Apply an operator that can grow a value, within the bounds."""
        _check_operands(operator, left, right)
        return self.check(super().call_binop(context, operator, left, right))

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Parse, and put the bounds into loops and `~`, which offer no other place for them."""
        tree = super()._parse(source, name, filename)
        # Lists first: a node that was wrapped is not found again.
        for loop in list(tree.find_all(nodes.For)):
            loop.iter = _filter(loop.iter, _EACH)
        for parent in [tree, *tree.find_all(nodes.Node)]:
            _replace_concatenations(parent)
        return tree

    def _each(self, iterable: Iterable[Any]) -> Iterator[Any]:
        for item in iterable:
            self.check()
            yield item

    def _concatenate(self, parts: list[Any]) -> str:
        return self._join(parts)

    def _join(self, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
        """Join as jinja2's filter does; its names of arguments are those that templates use."""
        if attribute is not None:
            value = map(make_attrgetter(self, attribute), value)
        texts = [str(_writable(part)) for part in self._each(value)]
        _check_join(str(d), texts)
        return str(d).join(texts)

    def _bounded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def bounded(*arguments: Any, **options: Any) -> Any:
            if name in _WIDENING:
                _check_widths(arguments[1:], options)
            elif name == "format":
                _check_operands("%", arguments[0], (*arguments[1:], *options.values()))
            elif name == "replace":  # behind jinja2's evaluation context
                _check_replace(str(arguments[1]), *map(str, arguments[2:4]))
            self.check()
            for argument in arguments:
                _writable(argument)
            return self.check(function(*arguments, **options))

        return bounded


class GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}`, which marks what an assistant said for training; here nothing."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> nodes.Node:
        """Return the body in a scope of its own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class PublicNamespace(Namespace):
    """jinja2's `namespace`, whose attributes a template may set unless their names begin with an underscore."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise SecurityError(f"a template may not set {name!r} of a namespace")
        super().__setitem__(name, value)


def _filter(node: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(
        cast(nodes.Expr, node), name, [], [], None, None, lineno=node.lineno, environment=node.environment
    )


def _replace_concatenations(parent: nodes.Node) -> None:
    """Replace each `a ~ b` directly below `parent`."""

    def replaced(value: Any) -> Any:
        if not isinstance(value, nodes.Concat):
            return value
        parts = nodes.List(value.nodes, lineno=value.lineno, environment=value.environment)
        return _filter(parts, _CONCATENATE)

    for field, value in parent.iter_fields():
        if isinstance(value, list):
            value[:] = [replaced(item) for item in value]
        else:
            setattr(parent, field, replaced(value))


def _check_widths(arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Refuse numbers that are too large to be a width or a count."""
    for value in (*arguments, *options.values()):
        if isinstance(value, int) and abs(value) > _MAX_WIDTH:
            raise BoundExceeded(f"it writes with a width of more than {_MAX_WIDTH:,}")


def _check_format(text: str, pattern: re.Pattern[str]) -> None:
    """Refuse a format that writes too much, or whose widths are not in it."""
    widths = [width for match in pattern.finditer(text) for width in re.findall(r"[*{]|[0-9]+", match.group("spec"))]
    if any(width in "*{" or len(width) > len(str(_MAX_WIDTH)) for width in widths):
        raise BoundExceeded("it formats a text with a width that is too large, or not in the format")
    if sum(map(int, widths)) > MAX_CHARACTERS:
        raise BoundExceeded(f"it makes a text of more than {MAX_CHARACTERS:,} characters")


def _check_operands(operator: str, left: Any, right: Any) -> None:
    """Refuse operations whose result would be too large to make."""
    if operator == "*":
        for sequence, times in ((left, right), (right, left)):
            if isinstance(sequence, Sized) and isinstance(times, int) and len(sequence) * times > MAX_CHARACTERS:
                raise BoundExceeded(f"it makes something of more than {MAX_CHARACTERS:,} elements")
    if operator == "%" and isinstance(left, str):
        _check_format(left, _CONVERSION)
        _check_fields(left.count("%"), right if isinstance(right, tuple) else (right,))
    if operator in ("*", "**") and isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * abs(right) if operator == "**" else left.bit_length() + right.bit_length()
        if bits > _MAX_INTEGER_BITS:
            raise BoundExceeded(f"it makes a number of more than {_MAX_INTEGER_BITS} bits")


def _check_fields(num_fields: int, values: Iterable[Any]) -> None:
    """Refuse a format whose fields would together write too much, if each wrote the longest text among the values."""
    longest = max(map(_longest_text, values), default=0)
    if num_fields * longest > MAX_CHARACTERS:
        raise BoundExceeded(f"it makes a text of more than {MAX_CHARACTERS:,} characters")


def _longest_text(value: Any) -> int:
    """Return the length of a text, or of the texts directly in a mapping or list together."""
    if isinstance(value, str):
        return len(value)
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    return sum(len(item) for item in items if isinstance(item, str))


def _checked_arguments(text: str, method: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Refuse a method of a text that would make too long a one; return its arguments, iterators as lists."""
    if method == "replace" and len(arguments) > 1 and all(isinstance(part, str) for part in arguments[:2]):
        _check_replace(text, *arguments[:2])
    elif method == "translate" and arguments and isinstance(arguments[0], Mapping):
        _check_fields(len(text), arguments[0].values())
    elif method == "join" and arguments and not isinstance(arguments[0], str):
        parts = list(arguments[0])
        _check_join(text, [part for part in parts if isinstance(part, str)])
        return (parts, *arguments[1:])
    return arguments


def _writable(value: Any) -> Any:
    """Return a value. Raises BoundExceeded for lists and mappings that would be too long a text, if written out."""
    length = 0
    waiting = [value] if isinstance(value, (list, tuple, dict)) else []
    while waiting:
        container = waiting.pop()
        length += len(container)
        for item in container.items() if isinstance(container, dict) else container:
            if isinstance(item, str):
                length += len(item)
            elif isinstance(item, (list, tuple, dict)):
                waiting.append(item)
            if length + len(waiting) > MAX_CHARACTERS:
                raise BoundExceeded(f"it makes lists of more than {MAX_CHARACTERS:,} characters")
    return value


def _check_replace(text: str, old: str, new: str) -> None:
    if len(text) + text.count(old) * (len(new) - len(old)) > MAX_CHARACTERS:
        raise BoundExceeded(f"it makes a text of more than {MAX_CHARACTERS:,} characters")


def _check_join(separator: str, texts: list[str]) -> None:
    if sum(map(len, texts)) + len(separator) * (len(texts) - 1) > MAX_CHARACTERS:
        raise BoundExceeded(f"it makes a text of more than {MAX_CHARACTERS:,} characters")


def _raise_exception(message: object) -> NoReturn:
    raise Refused(str(message))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON as chat templates expect it: not escaped for HTML, which jinja2's own filter would do."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
