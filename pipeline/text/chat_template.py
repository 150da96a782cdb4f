"""A checkpoint's own chat template: messages in, the text its training used out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from pipeline.core.errors import ModelError
from pipeline.core.hashing import sha256_json
from pipeline.text.templates import TemplateRefused, compile_template, render
from pipeline.text.tokenizer import NAMED_TOKENS, read_object, read_tokenizer_config

PROBE = "7f3a"  # a text that no template contains


class ChatTemplate:
    """One compiled template with the names of the tokenizer's tokens."""

    def __init__(
        self, source: str, tokens: Mapping[str, str], *, where: str = "chat template", date: str | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.source, self.where = source, where
        self._values = dict(tokens) | dict(kwargs or {})
        self._template = compile_template(source, where, date=date, wrong=ModelError)
        self.digest = sha256_json({"template": source, "tokens": dict(tokens)})

    @classmethod
    def load(cls, folder: Path, *, date: str | None = None, kwargs: Mapping[str, Any] | None = None) -> ChatTemplate | None:
        """The template of a checkpoint folder, None where it has none (a base model).

        Looked for as transformers does: chat_template.jinja, chat_template.json, then `chat_template` of
        tokenizer_config.json, a string or a list of named ones of which `default` is taken.
        """
        config = read_tokenizer_config(folder)
        source, where = _find_source(folder, config)
        if source is None:
            return None
        extra = config.get("extra_special_tokens")
        named = {name: config[name] for name in NAMED_TOKENS if config.get(name)} | (extra if isinstance(extra, dict) else {})
        tokens = {name: str(item["content"]) if isinstance(item, dict) else str(item) for name, item in named.items()}
        return cls(source, tokens, where=where, date=date, kwargs=kwargs)

    def render(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **values: Any) -> str:
        """The text of a conversation. Raises TemplateRefused with the template's own words.

        Keys whose value is null are left out: templates print them as "None".
        """
        plain = [{key: value for key, value in message.items() if value is not None} for message in messages]
        names = {"tools": None, "documents": None} | self._values | values
        return render(self._template, names | {"messages": plain, "add_generation_prompt": add_generation_prompt})

    @cached_property
    def takes_system(self) -> bool:
        """False where a system turn is refused or silently left out."""
        return self._shows([("system", PROBE), ("user", "a")], PROBE)

    @cached_property
    def takes_any_order(self) -> bool:
        """False where two turns of one role in a row, or an assistant's first turn, are refused."""
        return self._shows([("user", "a"), ("user", PROBE)], PROBE) and self._shows([("assistant", PROBE), ("user", "a")], PROBE)

    @cached_property
    def works(self) -> str | None:
        """None where a plain question renders, else the template's words."""
        try:
            self.render([{"role": "user", "content": "a"}])
        except TemplateRefused as error:
            return str(error)
        return None

    def _shows(self, turns: list[tuple[str, str]], text: str) -> bool:
        try:
            return text in self.render([{"role": role, "content": content} for role, content in turns])
        except TemplateRefused:
            return False


def _find_source(folder: Path, config: dict[str, Any]) -> tuple[str | None, str]:
    file = folder / "chat_template.jinja"
    if file.is_file():
        try:
            return file.read_text(encoding="utf-8"), str(file)
        except UnicodeDecodeError as error:
            raise ModelError(f"{file}: not UTF-8 text (byte {error.start}); fetch it again, or set prompt.chat to false") from None
    legacy = read_object(folder / "chat_template.json").get("chat_template")
    found = legacy if legacy is not None else config.get("chat_template")
    where = str(folder / ("chat_template.json" if legacy is not None else "tokenizer_config.json"))
    if isinstance(found, list):
        if not found or not all(isinstance(item, dict) and isinstance(item.get("name"), str) and "template" in item for item in found):
            raise ModelError(
                f"{where}: a list of chat templates must give a name and a template for each; mend it or set prompt.chat to false"
            )
        named = {item["name"]: item["template"] for item in found}
        if "default" not in named and len(named) != 1:
            raise ModelError(f"{where}: chat templates {sorted(named)}, none called default; name one default or set prompt.chat to false")
        found = named.get("default", next(iter(named.values())))
    if found is not None and not isinstance(found, str):
        raise ModelError(f"{where}: chat_template must be text, found {type(found).__name__}; mend it or set prompt.chat to false")
    return found, where
