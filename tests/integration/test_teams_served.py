"""AG2 and AutoGen agents that speak in rounds against a real vLLM, with the plugin and without."""

from __future__ import annotations

import pytest
from sdk_environment import needs, play
from vllm_server import Server

pytestmark = pytest.mark.server


@pytest.fixture(
    scope="module",
    params=[("ag2", "ag2_broadcast.py"), ("autogen_agentchat", "autogen_team.py")],
    ids=["ag2", "autogen"],
)
def script(request: pytest.FixtureRequest) -> str:
    package, name = request.param
    needs(package)
    return str(name)


@pytest.mark.parametrize("stream", [(), ("--stream",)], ids=["whole", "streamed"])
def test_exact_rounds_say_what_a_plain_server_says(
    server: Server, plain_server: Server, script: str, stream: tuple[str, ...]
) -> None:
    ours = play(script, server, "--fidelity", "exact", *stream)
    plain = play(script, plain_server, *stream)
    assert ours["texts"] == plain["texts"]
    assert [r["plain"] for r in ours["rounds"]] == [False] * 3
    assert [r["plain"] for r in plain["rounds"]] == [True] * 3
    assert bool(ours["chunks"]) == bool(stream)
    for who, chunks in ours["chunks"].items():
        assert chunks == "".join(ours["texts"][who])


def test_reuse_is_visible_in_the_report_of_every_round(tiny_server: Server, script: str) -> None:
    given = (
        "--agents",
        "8",
        "--news",
        "24",
        "--max-tokens",
        "40",
        "--fidelity",
        "fast",
        "--village",
        "Oak Hill",
    )
    rounds = play(script, tiny_server, *given)["rounds"]
    assert [r["groups"] for r in rounds] == [[8]] * 3
    assert all(r["reused"] > 0 for r in rounds), rounds


def test_64_agents_and_3_rounds_lose_and_double_nothing(tiny_server: Server, script: str) -> None:
    played = play(script, tiny_server, "--agents", "64", "--max-tokens", "3")
    assert [(r["answers"], r["groups"]) for r in played["rounds"]] == [(64, [64])] * 3
    assert len({r["round_id"] for r in played["rounds"]}) == 3
    assert {who: len(texts) for who, texts in played["texts"].items()} == {f"agent_{n}": 3 for n in range(64)}
    assert all(r["reused"] > 0 for r in played["rounds"][1:]), played["rounds"]
