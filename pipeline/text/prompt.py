"""A clean row becomes the text the model sees and its token ids.

The scaffold (chat template, user template) may hold control tokens; what comes from rows, from the system prompt and from
the examples is text, whatever it spells.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.core.errors import ModelError, ParamsError
from pipeline.core.hashing import sha256_json
from pipeline.core.params import PromptParams
from pipeline.text import conversation
from pipeline.text.chat_template import ChatTemplate
from pipeline.text.control_tokens import unused_character
from pipeline.text.conversation import BadTurns, Turn
from pipeline.text.templates import TemplateRefused, compile_template, render
from pipeline.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class PromptRow:
    """What a prompt is made of. messages: parsed JSON, given instead of text. fields: the row's other fields."""

    id: str
    text: str | None = None
    messages: Any = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    system: str | None = None  # the row's own, instead of prompt.system
    max_new_tokens: int = 128


@dataclass(frozen=True, slots=True)
class Prompt:
    """The text the model sees and its ids."""

    text: str
    token_ids: list[int]
    truncated_tokens: int = 0
    escaped: tuple[str, ...] = ()  # control-token strings that were encoded as text


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a row has no prompt: a reason code and what was found, the limit and the way out."""

    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class _Draft:
    """A rendered prompt before encoding; `marker` stands in it wherever a control token is to stay text."""

    marked: str
    marker: str

    @property
    def text(self) -> str:
        return self.marked.replace(self.marker, "")


class PromptBuilder:
    """Renders, encodes and measures prompts; one for training, service and the nightly run.

    max_model_len: tokens of prompt and answer together. examples: few-shot pairs {user, assistant, ...}.
    """

    def __init__(
        self, params: PromptParams, tokenizer: Tokenizer, template: ChatTemplate | None, *, max_model_len: int,
        examples: Sequence[Mapping[str, str]] = (),
    ) -> None:  # fmt: skip
        self._params, self._tokenizer, self._max_model_len = params, tokenizer, max_model_len
        self._chat = _chosen_template(params, template)
        self._template = None
        if params.template is not None:
            self._template = compile_template(params.template, "prompt.template", date=params.date, strict=True)
        self._raw_examples = [dict(example) for example in examples]
        self._fixed_text = json.dumps([params.system, self._raw_examples], ensure_ascii=False)
        self._known_examples: tuple[str, list[tuple[str, str]]] | None = None

    @property
    def uses_chat(self) -> bool:
        """Whether the checkpoint's chat template makes the prompts."""
        return self._chat is not None

    @property
    def reads_fields(self) -> bool:
        """Whether a user template may read the rows' other fields."""
        return self._template is not None

    @property
    def digest(self) -> str:
        """What a prompt depends on besides its row and the tokenizer."""
        params = self._params.model_dump(mode="json", exclude={"few_shot"})
        return sha256_json([params, self._raw_examples, self._chat.digest if self._chat else None])

    def build(self, rows: Sequence[PromptRow]) -> list[Prompt | Refusal]:
        """One prompt or refusal per row, in order; texts are encoded in one batch."""
        drafts = [self._drafted(row) for row in rows]
        plain = [i for i, draft in enumerate(drafts) if isinstance(draft, _Draft) and draft.marker not in draft.marked]
        ids = dict(zip(plain, self._tokenizer.encode_scaffold([d.marked for i in plain if isinstance(d := drafts[i], _Draft)])))
        return [self._finished(row, draft, ids.get(i)) for i, (row, draft) in enumerate(zip(rows, drafts))]

    def _drafted(self, row: PromptRow) -> _Draft | Refusal:
        try:
            return self._draft(row)
        except BadTurns as error:
            return Refusal(error.reason, f"row {row.id}: {error}")
        except TemplateRefused as error:
            return Refusal("template_error", f"row {row.id}: {error}")

    def _draft(self, row: PromptRow, turns: list[Turn] | None = None, marker: str | None = None) -> _Draft:
        """Render a row; `turns` stands in for its own (already marked) turns when a prompt has been shortened."""
        if marker is None:
            content = [row.text, row.system, row.messages, dict(row.fields) if self._template else None]
            marker = unused_character(json.dumps(content, ensure_ascii=False, default=str) + self._fixed_text)
        if turns is None:
            turns = self._turns(row, marker)
        system = row.system if row.system is not None else self._params.system
        system = self._marked(system, marker)
        if self._chat is None:
            text = self._plain_examples(marker) + conversation.plain_text(turns, None)
            return _Draft(conversation.BETWEEN.join([system, text]) if system else text, marker)
        turns = conversation.with_system(turns, system, replace=row.system is not None)
        turns = conversation.with_examples(turns, self._examples(marker))
        if not self._chat.takes_system:
            turns = conversation.without_system(turns, self._params.on_no_system_role)
        if not self._chat.takes_any_order:
            turns = conversation.alternating(turns, self._params.on_bad_turns)
        return _Draft(self._chat.render(turns), marker)

    def _turns(self, row: PromptRow, marker: str) -> list[Turn]:
        """The row's own turns, their texts marked; a user template makes the one turn of a text row."""
        if row.messages is not None:
            return [self._marked_turn(turn, marker) for turn in conversation.checked_turns(row.messages)]
        return [{"role": "user", "content": self._user_text(row.fields, row.text or "", row.id, marker)}]

    def _user_text(self, fields: Mapping[str, Any], text: str, row_id: str, marker: str) -> str:
        """What the user template makes of a row; `meta.NAME` is its field NAME, also where that is `text` or `id`."""
        text = str(self._marked(text, marker))
        if self._template is None:
            return text
        own = self._marked(dict(fields), marker)
        try:
            return render(self._template, {"meta": own} | own | {"text": text, "id": self._marked(row_id, marker)})
        except TemplateRefused as error:
            known = ", ".join(sorted({*map(str, fields), "text", "id"}))
            raise TemplateRefused(f"prompt.template: {error}; the row's fields: {known}") from None

    def _marked_turn(self, turn: Turn, marker: str) -> Turn:
        """An earlier answer keeps its own markup (<think>, <tool_call>), which templates look for; special tokens stay text everywhere."""
        if turn["role"] != "assistant" or self._params.allow_control_tokens:
            return dict(self._marked(turn, marker))
        return dict(self._tokenizer.special_escaper.escape(turn, marker))

    def _marked(self, value: Any, marker: str) -> Any:
        return value if self._params.allow_control_tokens else self._tokenizer.escaper.escape(value, marker)

    def _examples(self, marker: str) -> list[tuple[str, str]]:
        """Few-shot pairs, their questions through the user template like a row's own text."""
        known = self._known_examples
        if known is not None and known[0] == marker:
            return known[1]
        try:
            pairs = [(self._user_text(e, e["user"], "", marker), str(self._marked(e["assistant"], marker))) for e in self._raw_examples]
        except (TemplateRefused, KeyError) as error:
            raise ParamsError(f"prompt.few_shot: each example needs user and assistant: {error}") from None
        self._known_examples = marker, pairs  # replaced whole: batches are built in several threads
        return pairs

    def _plain_examples(self, marker: str) -> str:
        return "".join(f"{user}\n{assistant}{conversation.BETWEEN}" for user, assistant in self._examples(marker))

    def _finished(self, row: PromptRow, draft: _Draft | Refusal, ids: list[int] | None) -> Prompt | Refusal:
        if isinstance(draft, Refusal):
            return draft
        ids = self._encoded(draft) if ids is None else self._with_bos(ids)
        room = self._max_model_len - row.max_new_tokens
        if not draft.marked:
            return Refusal("empty_prompt", f"row {row.id}: the prompt is empty; check prompt.template and the row's text")
        if len(ids) <= room:
            return Prompt(draft.text, ids, 0, self._tokenizer.escaper.marked(draft.marked, draft.marker))
        shorter = self._shortened(row, draft.marker, len(ids), room) if self._params.on_too_long != "reject" and room > 0 else None
        return shorter or Refusal(
            "prompt_too_long",
            f"row {row.id}: prompt has {len(ids)} tokens, room for {room} (model.max_model_len {self._max_model_len} - max_new_tokens "
            f"{row.max_new_tokens}); shorten the text, raise model.max_model_len, or set prompt.on_too_long to truncate_left",
        )

    def _encoded(self, draft: _Draft) -> list[int]:
        if draft.marker in draft.marked:
            return self._with_bos(self._tokenizer.encode_marked(draft.marked, draft.marker))
        return self._with_bos(self._tokenizer.encode_scaffold([draft.marked])[0])

    def _with_bos(self, ids: list[int]) -> list[int]:
        """Exactly one BOS where the tokenizer itself would add one, whether or not the template wrote it."""
        bos = self._tokenizer.bos_ids
        if not bos:
            return ids
        while ids[: len(bos)] == bos:
            ids = ids[len(bos) :]
        return bos + ids

    def _shortened(self, row: PromptRow, marker: str, tokens: int, room: int) -> Prompt | None:
        """The prompt with its row's text cut on one side until it fits, the scaffold whole; None where that cannot be.

        truncate_left keeps the end: whole earlier turns go first. truncate_right keeps the beginning of the last turn.
        """
        turns, count, left = self._turns(row, marker), tokens, self._params.on_too_long == "truncate_left"
        while count > room:
            first = next(i for i, turn in enumerate(turns) if turn["role"] != "system")
            if left and first < len(turns) - 1:
                turns = turns[:first] + turns[first + 1 :]
            else:
                content = self._tokenizer.cut(turns[-1]["content"], count - room, left=left)
                if not content:
                    return None
                turns = [*turns[:-1], turns[-1] | {"content": content}]
            draft = self._draft(row, turns, marker)
            ids = self._encoded(draft)
            count = len(ids)
        return Prompt(draft.text, ids, tokens - count, self._tokenizer.escaper.marked(draft.marked, marker))


def _chosen_template(params: PromptParams, template: ChatTemplate | None) -> ChatTemplate | None:
    if params.chat is True and template is None:
        raise ModelError("prompt.chat is true but the checkpoint has no chat template; set prompt.chat to auto or false")
    if params.chat is False or template is None:
        return None
    if template.works is not None:
        raise ModelError(f"{template.where}: the chat template refuses a plain question: {template.works}; set prompt.chat to false")
    return template
