"""The turns of a conversation: checked, completed with system prompt and examples, and fitted to what a template takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

Turn = dict[str, Any]
Policy = Literal["fold", "drop", "reject"]
ROLES = ("system", "user", "assistant", "tool")
BETWEEN = "\n\n"  # between texts that are folded into one turn


class BadTurns(Exception):
    """A conversation that cannot be answered; `reason` is the reject's code."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def checked_turns(messages: Any) -> list[Turn]:
    """Turns with a known role and content as one text. Raises BadTurns naming the first wrong one."""
    if not isinstance(messages, list) or not messages:
        raise BadTurns("bad_roles", "messages must be a list with at least one turn")
    turns = [_checked(turn, number) for number, turn in enumerate(messages, 1)]
    last = turns[-1]["role"]
    if last not in ("user", "tool"):
        raise BadTurns("bad_roles", f"the last of {len(turns)} turns is of role {last}; it must be the user's or a tool's")
    return turns


def with_system(turns: list[Turn], system: str | None, replace: bool) -> list[Turn]:
    """The turns behind a system turn; a conversation's own system turn stays unless `replace`."""
    if system is None or (turns and turns[0]["role"] == "system" and not replace):
        return turns
    rest = turns[1:] if turns and turns[0]["role"] == "system" else turns
    return [{"role": "system", "content": system}, *rest] if system else rest


def with_examples(turns: list[Turn], examples: Sequence[tuple[str, str]]) -> list[Turn]:
    """The turns with question and answer pairs behind the system turn."""
    shown: list[Turn] = []
    for user, assistant in examples:
        shown += [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]
    head = 1 if turns and turns[0]["role"] == "system" else 0
    return [*turns[:head], *shown, *turns[head:]]


def without_system(turns: list[Turn], policy: Policy) -> list[Turn]:
    """For a template that takes no system turn: folded into the next user turn, dropped, or BadTurns."""
    if not any(turn["role"] == "system" for turn in turns):
        return turns
    if policy == "reject":
        raise BadTurns("no_system_role", "the chat template takes no system turn; set prompt.on_no_system_role to fold or drop")
    rest: list[Turn] = []
    held: list[str] = []
    for turn in turns:
        if turn["role"] == "system":
            held.append(turn["content"])
        elif turn["role"] == "user" and held and policy == "fold":
            rest.append(turn | {"content": BETWEEN.join([*held, turn["content"]])})
            held = []
        else:
            rest.append(turn)
    return rest


def alternating(turns: list[Turn], policy: Policy) -> list[Turn]:
    """For a template that wants user and assistant in turn, the user first: joined, dropped to the last one, or BadTurns."""
    head = [turn for turn in turns[:1] if turn["role"] == "system"]
    rest = turns[len(head) :]
    wrong = next((i for i, turn in enumerate(rest) if turn["role"] != ("user", "assistant")[i % 2]), None)
    if wrong is None:
        return turns
    if policy == "reject":
        raise BadTurns(
            "bad_roles",
            f"turn {wrong + 1 + len(head)} is of role {rest[wrong]['role']}; the chat template wants user and assistant in turn, the user "
            "first; set prompt.on_bad_turns to fold or drop",
        )
    joined: list[Turn] = []
    for turn in rest:
        role = "assistant" if turn["role"] == "assistant" else "user"
        if not joined and role == "assistant":
            continue  # an answer to nothing
        if joined and joined[-1]["role"] == role:
            content = turn["content"] if policy == "drop" else BETWEEN.join([joined[-1]["content"], turn["content"]])
            joined[-1] = joined[-1] | {"content": content}
        else:
            joined.append(turn | {"role": role})
    return head + joined


def plain_text(turns: Sequence[Turn], system: str | None) -> str:
    """A conversation for a model without a chat template: one question as it is, several turns with their roles."""
    parts = [system] if system else []
    if len(turns) == 1:
        return BETWEEN.join([*parts, turns[0]["content"]])
    parts += [f"{turn['role'].capitalize()}: {turn['content']}" for turn in turns]
    return BETWEEN.join([*parts, "Assistant:"])


def _checked(turn: Any, number: int) -> Turn:
    role = turn.get("role") if isinstance(turn, dict) else None
    role = "system" if role == "developer" else role
    if role not in ROLES:
        raise BadTurns("bad_roles", f"turn {number} has role {role!r}; known: {', '.join(ROLES)}")
    return {**turn, "role": role, "content": _content(turn.get("content"), number)}


def _content(content: Any, number: int) -> str:
    """Text, or the text parts of an OpenAI content list joined; null (a turn of tool calls) is empty."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, dict) and part.get("type", "text") == "text" else None for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise BadTurns("unsupported_content", f"turn {number} holds something other than text; this pipeline answers text only")
    return "".join(str(text) for text in texts)
