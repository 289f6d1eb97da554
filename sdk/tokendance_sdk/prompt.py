"""One agent's prompt of a round: private history, the shared blocks in its order, its task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokendance_sdk.blocks import Block
from tokendance_sdk.content import Message, escape_messages, expand_messages
from tokendance_sdk.errors import PromptError
from tokendance_sdk.layout import Layout

Part = str | Block
Label = str | Callable[[Block], str]
"""Text before a shared block: a template with `{owner}`, or a function of the block."""

DEFAULT_LABEL = "\n[{owner}]\n"


@dataclass(frozen=True, slots=True)
class Turn:
    """One message whose text is raw: private text and blocks, concatenated with nothing between."""

    role: str
    parts: tuple[Part, ...]


HistoryItem = str | Block | Turn | Mapping[str, Any]
History = str | Block | Turn | Sequence[HistoryItem]
"""Text and blocks (part of the next user message), turns, or OpenAI messages (pass through untouched)."""


@dataclass(frozen=True, slots=True)
class RoundPrompt:
    """An agent's prompt, not yet in any wire form. All text in it is raw: nothing is escaped.

    Example:
        >>> prompt = RoundPrompt.assemble("maria", "You are Maria.", [Block("Hi.", "klaus")], task="Answer.")
        >>> prompt.messages[0]["content"]
        'You are Maria.<TTSEP>\\n[klaus]\\n<TTSEP>Hi.<TTSEP>\\n\\nAnswer.'
    """

    agent: str
    items: tuple[Turn | Mapping[str, Any], ...]

    @classmethod
    def assemble(
        cls,
        agent: str,
        history: History = (),
        shared: Sequence[Block] = (),
        layout: Layout | None = None,
        task: str | Block | None = None,
        *,
        label: Label | None = DEFAULT_LABEL,
        system: str | None = None,
    ) -> RoundPrompt:
        """Put a prompt together: `system`, `history`, the shared blocks each after its label, `task`.

        Labels are blocks of their own, so that a block's tokens are its author's, whatever stands before it.
        History text, shared blocks and task share one user message. With `Layout.shared_first` the blocks
        open the first message instead (the system prompt, if there is one): a prefix common to all agents.

        Raises:
            LayoutError: the layout is no permutation of `shared`.
            PromptError: history or messages of a wrong shape, or nothing to say at all.
        """
        layout = layout or Layout.canonical()
        blocks = [part for block in layout.arrange(agent, shared) for part in _labelled(block, label)]
        items: list[Turn | Mapping[str, Any]] = [] if system is None else [Turn("system", (system,))]
        text = _read_history(agent, history, items)
        if layout.before_history and items:
            _prepend(items, blocks)
        elif layout.before_history:
            text = [*blocks, *(["\n"] if blocks and text else []), *text]
        else:
            text += blocks
        if task is not None:
            text += ["\n\n", task] if text else [task]
        if text:
            items.append(Turn("user", tuple(text)))
        if not items:
            raise PromptError(
                f"prompt of agent {agent!r} is empty; allowed: at least history, a block or a task"
            )
        return cls(agent, tuple(items))

    @property
    def messages(self) -> list[Message]:
        """OpenAI messages with `<TTSEP>` at every edge of a shared block (adjacent blocks share one)."""
        return expand_messages(self.round_messages, self.blocks)

    @property
    def plain_messages(self) -> list[Message]:
        """The same text without separators, for any server; literal separators stand as they were written."""
        return [
            {"role": item.role, "content": "".join(_raw(part) for part in item.parts)}
            if isinstance(item, Turn)
            else dict(item)
            for item in self.items
        ]

    @property
    def round_messages(self) -> list[Message]:
        """Messages for `/v1/rounds`: shared blocks by reference, texts escaped."""
        return [_round_message(item) for item in self.items]

    @property
    def blocks(self) -> dict[str, str]:
        """Id -> wire text of the shared blocks in this prompt."""
        return {
            part.id: part.wire
            for item in self.items
            if isinstance(item, Turn)
            for part in item.parts
            if isinstance(part, Block) and part.shared
        }

    def answered(self, output: Block | str) -> tuple[Turn | Mapping[str, Any], ...]:
        """The conversation so far and the agent's own output: a history for its next prompt."""
        block = output if isinstance(output, Block) else Block(output, self.agent)
        return (*self.items, Turn("assistant", (block,)))


def _labelled(block: Block, label: Label | None) -> Iterable[Block]:
    if label is not None:
        text = label(block) if callable(label) else label.replace("{owner}", block.owner or "")
        yield Block(text, block.owner)
    yield block


def _read_history(agent: str, history: History, items: list[Turn | Mapping[str, Any]]) -> list[Part]:
    """Append messages to `items`; return the text after the last of them."""
    if isinstance(history, str | Block | Turn):
        history = (history,)
    if isinstance(history, Mapping):
        raise PromptError(f"history of agent {agent!r} is a single message; allowed: text, or a list")
    text: list[Part] = []
    for place, item in enumerate(history):
        if isinstance(item, str | Block):
            text += ["\n", item] if text else [item]
            continue
        if not isinstance(item, Turn) and not (
            isinstance(item, Mapping) and isinstance(item.get("role"), str)
        ):
            raise PromptError(
                f"history[{place}] of agent {agent!r}: got {type(item).__name__} {str(item)[:80]!r}; "
                "allowed: text, Block, Turn, or a message with a role"
            )
        if text:
            items.append(Turn("user", tuple(text)))
            text = []
        items.append(item)
    return text


def _prepend(items: list[Turn | Mapping[str, Any]], blocks: Sequence[Block]) -> None:
    first = items[0]
    role = first.role if isinstance(first, Turn) else first["role"]
    if not blocks:
        return
    if role not in ("system", "developer", "user"):
        items.insert(0, Turn("user", tuple(blocks)))
        return
    if isinstance(first, Turn):
        items[0] = Turn(first.role, (*blocks, "\n", *first.parts))
        return
    content = first.get("content")
    if not isinstance(content, str) or set(first) != {"role", "content"}:
        raise PromptError(
            f"first message of the history has {sorted(first)} and {type(content).__name__} content; "
            "allowed with shared blocks first: a role and text"
        )
    items[0] = Turn(role, (*blocks, "\n", content))


def _raw(part: Part) -> str:
    return part.text if isinstance(part, Block) else part


def _round_message(item: Turn | Mapping[str, Any]) -> Message:
    if not isinstance(item, Turn):
        return escape_messages([item])[0]
    parts: list[dict[str, str]] = []
    text = ""
    for part in (*item.parts, None):
        if isinstance(part, str) or (isinstance(part, Block) and not part.shared):
            text += _raw(part)
            continue
        if text:
            parts.append({"type": "text", "text": Block(text).wire})
            text = ""
        if part is not None:
            parts.append({"type": "block", "ref": part.id})
    if all(part["type"] == "text" for part in parts):
        return {"role": item.role, "content": "".join(part["text"] for part in parts)}
    return {"role": item.role, "content": parts}
