"""The API reference, from docstrings: read from the source, so that no framework need be installed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

SDK = Path(__file__).resolve().parents[1] / "sdk"

PAGES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "api-core.md": (
        "Core",
        "tokendance_sdk",
        (
            "blocks",
            "layout",
            "prompt",
            "tokens",
            "client",
            "async_client",
            "session",
            "results",
            "report",
            "streams",
            "events",
            "progress",
            "joining",
            "series",
            "gathering",
            "wire",
            "errors",
        ),
    ),
    "api-langgraph.md": ("LangGraph", "integrations/langgraph", ("broadcaster", "chat", "node", "memory")),
    "api-autogen.md": ("AutoGen", "integrations/autogen", ("client", "team")),
    "api-ag2.md": ("AG2", "integrations/ag2", ("config", "broadcast")),
}
"""Page -> title, folder, modules."""

INTERNAL = {
    "blocks": {"JOINER", "strip_separators"},
    "wire": {
        *(
            "EventStream",
            "AsyncEventStream",
            "ServerKind",
            "ROUNDS",
            "CHAT",
            "post",
            "post_async",
            "status_url",
        ),
        *("is_no_such_route", "error_value", "failed_round", "broken_off"),
    },
    "events": {"RoundAccumulator"},
    "session": {"SessionState", "open_state"},
    "results": {"collect", "replaced", "past_deadline", "parse_response", "parse_member", "parse_completion"},
    "progress": {"ProgressMeter"},
    "joining": {"MemberStream"},
    "gathering": {"MemberCall", "Seat", "current_seat"},
    "series": {"MAX_SESSION_ID", "MAX_KNOWN"},
    "node": {"RoundNode"},
    "memory": {"MARKED", "KnownTexts", "Sessions", "split", "texts_in"},
    "team": {"BroadcastGroupChatManager"},
    "TokenDance": {"is_plain"},
    "AsyncTokenDance": {"is_plain"},
    "RoundSeries": {"kind", "remember", "solo_body", "send"},
    "OpenRound": {"join", "abandon", "turn", "takes"},
    "RoundBroadcaster": {"rounds", "async_rounds"},
}
"""Module or class -> public names that only other modules use."""

_SECTION = re.compile(
    r"^(Args|Attributes|Raises|Returns|Yields|Example|Examples)(?: \(.*\))?:$|^Raises, .*:$"
)
_ITEM = re.compile(r"^(?:    )?([\w.*, `]+): (.*)$")

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def api_pages() -> dict[str, str]:
    """File name -> content."""
    return {name: _page(*given) for name, given in PAGES.items()}


def _page(title: str, folder: str, modules: Sequence[str]) -> str:
    package = (
        folder.replace("/", ".")
        if folder.startswith("tokendance")
        else f"tokendance_sdk.{folder.replace('/', '.')}"
    )
    lines = [f"# API: {title}", ""]
    for module in modules:
        tree = ast.parse((SDK / folder / f"{module}.py").read_text(encoding="utf-8"))
        entries = list(_entries(tree, module))
        if entries:
            lines += [f"## `{package}.{module}`", "", *_prose(ast.get_docstring(tree) or ""), *entries]
    return "\n".join(lines).rstrip() + "\n"


def _entries(tree: ast.Module, module: str) -> Iterator[str]:
    hidden = INTERNAL.get(module, set())
    for node, after in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            documented = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            if isinstance(target, ast.Name) and documented and _public(target.id, hidden):
                assert isinstance(after, ast.Expr)
                assert isinstance(after.value, ast.Constant)
                value = ast.unparse(node.value) if node.value is not None else "..."
                yield from (f"### `{target.id} = {value}`", "", *_prose(str(after.value.value)))
        elif isinstance(node, ast.ClassDef) and _public(node.name, hidden):
            yield from _class(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _public(node.name, hidden):
            yield from _function(node, "###", "")


def _public(name: str, hidden: set[str]) -> bool:
    return not name.startswith("_") and name not in hidden


def _class(node: ast.ClassDef) -> Iterator[str]:
    made = next(
        (each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"), None
    )
    fields = [each for each in node.body if isinstance(each, ast.AnnAssign) and not _is_private(each)]
    is_record = any("dataclass" in ast.unparse(each) for each in node.decorator_list)
    if made is not None:
        arguments = _arguments(made)
    elif is_record:
        arguments = ", ".join(re.sub(r" = field\(default.*", " = ...", ast.unparse(each)) for each in fields)
    else:
        arguments = ", ".join(ast.unparse(base) for base in node.bases)
    yield from (f"### class `{node.name}({arguments})`", "", *_prose(ast.get_docstring(node) or ""))
    for each in node.body:
        if not isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if _public(each.name, INTERNAL.get(node.name, set())):
            yield from _function(each, "####", f"{node.name}.")


def _is_private(field: ast.AnnAssign) -> bool:
    return isinstance(field.target, ast.Name) and field.target.id.startswith("_")


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef, level: str, owner: str) -> Iterator[str]:
    text = ast.get_docstring(node)
    if text is None:
        return
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    marks = {ast.unparse(each) for each in node.decorator_list}
    if marks & {"property", "cached_property"}:
        heading = f"`{owner}{node.name}`{returns.replace(' -> ', ': `')}`"
    else:
        awaited = "await " if isinstance(node, ast.AsyncFunctionDef) else ""
        heading = f"`{awaited}{owner}{node.name}({_arguments(node)}){returns}`"
    yield from (f"{level} {heading}", "", *_prose(text))


def _arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    given = ast.unparse(node.args)
    return re.sub(r"^(self|cls)(, )?", "", given)


def _prose(text: str) -> list[str]:
    """A docstring as Markdown: sections as lists, examples as code."""
    lines: list[str] = []
    section = ""
    for line in text.splitlines():
        if _SECTION.match(line):
            section = line.partition(":")[0].partition(" (")[0]
            lines += [f"**{line.rstrip(':')}**", ""]
            if section.startswith("Example"):
                lines.append("```python")
        elif section.startswith("Example") and (line.startswith("    ") or not line):
            lines.append(line[4:])
        elif section and line.startswith("    "):
            item = _ITEM.match(line) if not line.startswith("        ") else None
            lines.append(f"- `{item[1].strip()}`: {item[2]}" if item else f"  {line.strip()}")
        else:
            if section.startswith("Example") and line:
                lines += ["```", ""]
                section = ""
            section = "" if line else section
            lines.append(line)
    if section.startswith("Example"):
        while lines and not lines[-1]:
            lines.pop()
        lines.append("```")
    return [*lines, ""]
