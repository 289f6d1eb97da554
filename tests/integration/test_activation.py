"""One flag switches everything on; without it the installed package does nothing at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("vllm")

from vllm_server import Server, run_python, running_server

pytestmark = pytest.mark.server


def test_a_plain_server_has_no_route_no_header_effect_no_log_line_and_reads_ttsep_as_text(
    plain_server: Server,
    model_dir: Path,
) -> None:
    tagged = {"X-TokenDance-Round-Id": "not a valid id"}
    assert plain_server.request("/v1/rounds", {}).status == 404
    assert plain_server.request("/tokendance/v1/status").status == 404
    answer = plain_server.complete("a<TTSEP>b", tagged, echo=True)
    again = plain_server.complete("a<TTSEP>b", echo=True)
    assert answer.status == 200
    assert answer.body["choices"] == again.body["choices"]
    assert answer.body["choices"][0]["text"].startswith("a<TTSEP>b")
    assert "tokendance" not in answer.body
    log = plain_server.log.read_text(errors="replace").replace(str(model_dir), "MODEL").splitlines()
    ours = [line for line in log if "tokendance" in line.lower()]
    assert [line for line in ours if "GET /tokendance/v1/status" not in line] == []


def test_a_server_from_a_config_file_guards_every_route_with_its_key(
    model_dir: Path, log_dir: Path, tmp_path: Path
) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("plugin: [tokendance_engine]\ntokendance-gather-ms: 50\ntokendance-max-agents: 2\n")
    arguments = ["--config", str(file)]
    environment = {"TOKENDANCE_GATHER_MS": "70", "TOKENDANCE_TAIL_TOKENS": "32"}
    with running_server(model_dir, log_dir / "key.log", arguments, environment, api_key="secret") as running:
        wrong = {"X-TokenDance-Round-Id": "not valid"}
        for path, body, headers in (
            ("/tokendance/v1/status", None, None),
            ("/v1/rounds", {}, None),
            ("/v1/chat/completions", {"tokendance": 3}, wrong),
        ):
            assert running.request(path, body, headers, key="other").status == 401, path
        assert running.chat("Hi", wrong).status == 400
        assert running.request("/v1/rounds", {}).status == 400
        status = running.request("/tokendance/v1/status")
        assert status.status == 200
        config = status.body["config"]
        assert (config["gather_ms"], config["tail_tokens"], config["max_agents"]) == (50.0, 32, 2)
        assert status.body["limits"]["max_agents"] == 2
        assert status.body["protocol_version"] == 1
        assert status.body["model"] == ["demo"]
        assert status.body["splittable_tokenizer"] is True


OFFLINE = """
import json, sys
from vllm import LLM, SamplingParams
import tokendance_engine
llm = LLM(sys.argv[1], dtype="float32", enforce_eager=True, max_model_len=2048, gpu_memory_utilization=0.2,
          **tokendance_engine.llm_kwargs(gather_ms=20))
params = SamplingParams(max_tokens=2, temperature=0)
shared = "Isabella plans a party at Hobbs Cafe. " * 20
wire = [f"I am {name}.<TTSEP>{shared}<TTSEP>Go." for name in ("ann", "bob")]
tags = [tokendance_engine.tag(params, round_id="off:1", agent_id=name, round_size=2) for name in ("ann", "bob")]
outputs = llm.generate([*wire, "a<TTSEP>b"], [*tags, params], use_tqdm=False)
encode = llm.get_tokenizer().encode
print(json.dumps({
    "prompts": [each.prompt_token_ids for each in outputs],
    "expected": [[token for text in each.split("<TTSEP>") for token in encode(text)] for each in wire]
        + [encode("a<TTSEP>b")],
    "reports": [(each.kv_transfer_params or {}).get("tokendance") for each in outputs],
}))
"""


def test_offline_one_call_switches_it_on_and_tagged_prompts_are_split(model_dir: Path) -> None:
    found = json.loads(run_python(OFFLINE, arguments=[str(model_dir)], starts='{"prompts"'))
    assert found["prompts"] == found["expected"]
    ann, bob, untagged = found["reports"]
    assert untagged is None
    assert [(each["agent_id"], each["group_size"]) for each in (ann, bob)] == [("ann", 2), ("bob", 2)]
