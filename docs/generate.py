"""Write the reference pages that follow from code; `--check` fails when a file is out of date.

python docs/generate.py
"""

from __future__ import annotations

import sys
from pathlib import Path

from api_reference import api_pages
from tokendance_engine.config import config_table
from tokendance_engine.observe.metrics import metrics_table
from tokendance_engine.reuse import backends
from tokendance_sdk.protocol import HEADER_FIELDS, FallbackReason, MemberReport, PlacementReason, RoundTag

HERE = Path(__file__).parent / "reference"
NOTE = "<!-- Written by docs/generate.py; do not edit. -->\n\n"


def pages() -> dict[str, str]:
    """File name -> content."""
    api = {name: NOTE + content for name, content in api_pages().items()}
    return {"settings.md": settings(), "protocol.md": protocol(), "metrics.md": metrics(), **api}


def metrics() -> str:
    """Every Prometheus family of the engine."""
    return NOTE + "# Metrics\n\nHow to read them: `docs/metrics.md`.\n\n" + metrics_table() + "\n"


def settings() -> str:
    """Every setting of the engine."""
    return (
        NOTE
        + "# Settings of the engine\n\nSources, highest first: flags, the `tokendance` entry of "
        + "`kv_connector_extra_config`, environment, defaults.\n\n"
        + config_table()
        + "\n"
    )


def protocol() -> str:
    """The tag, the report, and why nothing was reused."""
    header = {field: name for name, field in HEADER_FIELDS.items()}
    tag = [
        f"| `{name}` | {f'`{header[name]}`' if name in header else '-'} | {field.description or ''} |"
        for name, field in RoundTag.model_fields.items()
    ]
    report = [
        f"| `{name}` | {field.description or ''} |" for name, field in MemberReport.model_fields.items()
    ]
    reasons = [f"| `{reason}` | {reason.describe()} |" for reason in FallbackReason]
    placements = [f"| `{reason}` | {reason.describe()} |" for reason in PlacementReason]
    return (
        NOTE
        + "# Round protocol\n\n## Tag of a request\n\nIn headers, or in the body under `tokendance`.\n\n"
        + "| field | header | meaning |\n|---|---|---|\n"
        + "\n".join(tag)
        + f"\n\nBackends: {', '.join(f'`{kind.name}`' for kind in backends.built_in())}; "
        + "see [backends](../backends.md).\n"
        + "\n## Report of a member\n\n| field | meaning |\n|---|---|\n"
        + "\n".join(report)
        + "\n\n## Why nothing was reused (`fallback_reason`)\n\n| reason | meaning |\n|---|---|\n"
        + "\n".join(reasons)
        + "\n\n## Why a region was copied (`placement_reason`)\n\n| reason | meaning |\n|---|---|\n"
        + "\n".join(placements)
        + "\n"
    )


def main() -> int:
    """Write the pages, or with `--check` compare them."""
    stale = []
    for name, content in pages().items():
        path = HERE / name
        if "--check" in sys.argv:
            if not path.is_file() or path.read_text(encoding="utf-8") != content:
                stale.append(name)
        else:
            HERE.mkdir(exist_ok=True)
            path.write_text(content, encoding="utf-8")
    if stale:
        print(f"out of date: {', '.join(stale)}; run python docs/generate.py", file=sys.stderr)
    return int(bool(stale))


if __name__ == "__main__":
    raise SystemExit(main())
