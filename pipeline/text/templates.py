"""Jinja2 in a sandbox, for checkpoints' chat templates and users' prompt templates alike: code from files is not trusted.

Globals, filters and blocks are those that `transformers` gives chat templates, but for what differs from run to run: neither
chance (`random`, `lipsum`) nor the clock is among them. The date a template asks for comes from prompt.date.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from typing import Any

from jinja2 import StrictUndefined, Template, TemplateError, TemplateSyntaxError, Undefined, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from pipeline.core.errors import ParamsError, PipelineError


class TemplateRefused(Exception):
    """A template could not be rendered for one row: an undefined variable, raise_exception, a wrong type."""


class GenerationBlock(Extension):
    """`{% generation %}...{% endgeneration %}` marks assistant text for training; here it is its content."""

    tags = {"generation"}  # noqa: RUF012 the library's own convention

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


class SafeNamespace(Namespace):
    """namespace() without names that begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # the odd signature lets namespace(self=1) work, as in Jinja itself
        self, values = args[0], dict(*args[1:], **kwargs)
        for name in values:
            _refuse_underscore(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_underscore(name)
        Namespace.__setitem__(self, name, value)


def compile_template(
    source: str, where: str, *, date: str | None = None, strict: bool = False, wrong: type[PipelineError] = ParamsError
) -> Template:
    """Compile a template. `where` names it in errors; strict: an undefined variable is an error as in users' templates.

    date: YYYY-MM-DD for strftime_now; without it the name is undefined, and templates fall back to their own date.
    Raises `wrong` with the line of a syntax error.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=strict, undefined=StrictUndefined if strict else Undefined,
        finalize=_printable, extensions=[GenerationBlock, "jinja2.ext.loopcontrols"],
    )  # fmt: skip
    environment.filters["tojson"] = _tojson
    del environment.filters["random"], environment.globals["lipsum"]
    environment.globals |= {"raise_exception": _raise_exception, "namespace": SafeNamespace}
    if date is not None:
        day = datetime.datetime.fromisoformat(date)
        environment.globals["strftime_now"] = day.strftime
    try:
        return environment.from_string(source)
    except TemplateSyntaxError as error:
        raise wrong(f"{where}: line {error.lineno}: {(error.message or '').rstrip('.')}; mend the template") from None


def render(template: Template, values: Mapping[str, Any]) -> str:
    """Render one row's values, whatever their names. Raises TemplateRefused with the template's own words."""
    try:
        return template.render(values)
    except RecursionError:
        raise TemplateRefused("the template calls itself without end") from None
    except MemoryError:
        raise
    except Exception as error:  # a filter given a wrong value may raise anything
        hint = "; set prompt.date, this template prints the day" if "strftime_now" in str(error) else ""
        raise TemplateRefused(f"{error or type(error).__name__}{hint}") from None


def _printable(value: Any) -> Any:
    """What `{{ }}` prints. Refuses what shows its place in memory: another one in every run."""
    if not isinstance(value, str) and " at 0x" in str(value) and not isinstance(value, list | tuple | dict):
        raise TemplateError(f"{type(value).__name__} is no text; turn it into a list or join it: {{{{ ... | join(', ') }}}}")
    return value


def _tojson(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False) -> str:
    """Unlike Jinja's own, escapes no HTML and keeps non-ASCII text."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _refuse_underscore(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace attribute must not begin with an underscore, got {name!r}")
