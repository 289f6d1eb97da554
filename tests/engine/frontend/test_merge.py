"""How a tag reaches the engine request, and how segment boundaries of every kind of prompt are found."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from tokendance_engine.config import EngineConfig
from tokendance_engine.errors import RequestRejectedError
from tokendance_engine.frontend.context import CURRENT, RequestState
from tokendance_engine.frontend.merge import merge_tag
from tokendance_engine.frontend.renderers import BOUNDARIES
from tokendance_engine.frontend.separator import Segmenter
from tokendance_engine.offline import tag
from tokendance_engine.rounds.tag import EngineTag
from tokendance_sdk.protocol import RoundTag
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams


class Processor:
    """What `merge_tag` uses of vLLM's input processor; its tokenizer has one token per character."""

    def __init__(self, **settings: Any) -> None:
        config = EngineConfig.resolve(flags=settings, environ={})
        transfer = SimpleNamespace(kv_connector_extra_config=config.to_extra_config())
        self.vllm_config = SimpleNamespace(kv_transfer_config=transfer)
        self.renderer = SimpleNamespace(
            _tokendance_segmenter=Segmenter(
                lambda text, specials: [1] * specials + [ord(char) for char in text],
                lambda ids: "".join(map(chr, ids)),
                max_segments=config.max_segments,
            )
        )


@pytest.fixture
def state() -> Iterator[RequestState]:
    made = RequestState(tag=RoundTag(round_id="sim:3", agent_id="ann"))
    token = CURRENT.set(made)
    yield made
    CURRENT.reset(token)


def merged(prompt: Any, params: Any, **settings: Any) -> tuple[Any, EngineTag | None]:
    prompt, params = merge_tag(Processor(**settings), "chatcmpl-1", prompt, params)
    return prompt, EngineTag.from_params((params.extra_args or {}).get("kv_transfer_params"))


def ids(text: str) -> list[int]:
    return [ord(char) for char in text]


def test_an_untagged_request_passes_untouched() -> None:
    prompt, params = {"type": "token", "prompt_token_ids": [1]}, SamplingParams(extra_args={"x": 1})
    assert merge_tag(Processor(), "id", prompt, params) == (prompt, params)
    assert params.extra_args == {"x": 1}


def test_a_tagged_request_gets_the_resolved_tag_and_callers_objects_stay_as_they_were(
    state: RequestState,
) -> None:
    params = SamplingParams(extra_args={"kv_transfer_params": {"other": 1}})
    prompt = {"type": "token", "prompt_token_ids": [7, 8, 9], BOUNDARIES: (1, 2)}
    new_prompt, new_params = merge_tag(Processor(default_fidelity="fast"), "chatcmpl-1", prompt, params)
    found = EngineTag.from_params(new_params.extra_args["kv_transfer_params"])
    assert found is not None
    assert (found.round_id, found.agent_id, found.session_id) == ("sim:3", "ann", "sim")
    assert (found.segments, found.fidelity, found.backend, found.together) == (
        (1, 2),
        "fast",
        "master",
        False,
    )
    assert new_params.extra_args["kv_transfer_params"]["other"] == 1
    assert new_prompt == {"type": "token", "prompt_token_ids": [7, 8, 9]}
    assert params.extra_args == {"kv_transfer_params": {"other": 1}}
    assert BOUNDARIES in prompt


def test_the_agents_default_name_is_the_requests_id_and_parents_are_unique(state: RequestState) -> None:
    state.tag = RoundTag(round_id="r")
    tags = [merged({"type": "token", "prompt_token_ids": [1]}, SamplingParams())[1] for _ in range(2)]
    assert [each.agent_id for each in tags if each] == ["chatcmpl-1"] * 2
    assert len({each.parent for each in tags if each}) == 2


def test_a_round_sent_whole_has_its_exact_size(state: RequestState) -> None:
    state.size = 5
    _, found = merged({"type": "token", "prompt_token_ids": [1]}, SamplingParams())
    assert found is not None
    assert (found.round_size, found.together) == (5, True)


def test_a_clients_forged_tag_does_not_replace_the_requests_own(state: RequestState) -> None:
    params = SamplingParams(
        extra_args={"kv_transfer_params": {"tokendance": {"round_id": "evil", "together": True}}}
    )
    _, found = merged({"type": "token", "prompt_token_ids": [1]}, params)
    assert found is not None
    assert (found.round_id, found.together) == ("sim:3", False)


@pytest.mark.parametrize("raw", [3, "r", {"round_id": "a b"}, {"round_id": "r", "together": True}, {}])
def test_a_malformed_tag_in_the_params_is_a_validation_error_not_a_crash(raw: Any) -> None:
    params = SamplingParams(extra_args={"kv_transfer_params": {"tokendance": raw}})
    with pytest.raises(VLLMValidationError, match="tokendance"):
        merged({"type": "token", "prompt_token_ids": [1]}, params)


@pytest.mark.parametrize("first", [[], [1]], ids=["no-bos", "bos"])
def test_offline_a_tagged_text_prompt_is_split(first: list[int]) -> None:
    wire = "ab<TTSEP>cd<TTSEP><\u2060TTSEP>"
    prompt = {"type": "token", "prompt": wire, "prompt_token_ids": first + ids(wire)}
    new, found = merged(prompt, tag(SamplingParams(), round_id="r", agent_id="ann"))
    assert new["prompt"] == "abcd<TTSEP>"
    assert new["prompt_token_ids"] == first + ids("abcd<TTSEP>")
    assert found is not None
    assert found.segments == (len(first) + 2, len(first) + 4)


def test_offline_a_token_id_prompt_takes_its_segments_from_the_tag() -> None:
    params = tag(SamplingParams(), round_id="r", segments=[1, 2])
    _, found = merged({"type": "token", "prompt_token_ids": [5, 6, 7]}, params)
    assert found is not None
    assert found.segments == (1, 2)


@pytest.mark.parametrize("segments", [[4], [2, 1], [-1]])
def test_segments_that_do_not_fit_the_prompt_are_a_validation_error(segments: list[int]) -> None:
    params = tag(SamplingParams(), round_id="r", segments=segments)
    with pytest.raises(VLLMValidationError, match=r"tokendance.segments: got"):
        merged({"type": "token", "prompt_token_ids": [5, 6, 7]}, params)


def test_segments_with_a_prompt_that_has_separators_are_refused() -> None:
    params = tag(SamplingParams(), round_id="r", segments=[1])
    wire = "a<TTSEP>b"
    with pytest.raises(VLLMValidationError, match="only with a prompt of token ids"):
        merged({"type": "token", "prompt": wire, "prompt_token_ids": ids(wire)}, params)


def test_the_offline_helper_copies_and_checks() -> None:
    params = SamplingParams(extra_args={"x": 1})
    tagged = tag(params, round_id="r", fidelity="fast")
    assert params.extra_args == {"x": 1}
    assert tagged.extra_args == {
        "x": 1,
        "kv_transfer_params": {"tokendance": {"round_id": "r", "fidelity": "fast"}},
    }
    with pytest.raises(RequestRejectedError, match=r"round_id: .*got 'a b'"):
        tag(params, round_id="a b")


def test_settings_are_forgotten_with_their_processor() -> None:
    from tokendance_engine.frontend import merge

    processor = Processor()
    merge_tag(
        processor, "id", {"type": "token", "prompt_token_ids": [1]}, tag(SamplingParams(), round_id="r")
    )
    assert processor in merge._configs
    before = len(merge._configs)
    del processor
    gc.collect()
    assert len(merge._configs) < before


def test_an_unknown_backend_or_option_is_refused_by_name() -> None:
    params = tag(SamplingParams(), round_id="sim:3", backend="magic")
    with pytest.raises(
        VLLMValidationError, match=r"backend 'magic' is unknown; allowed: all, .*epic, master"
    ):
        merged({"type": "token", "prompt_token_ids": [1, 2, 3]}, params)
    params = tag(SamplingParams(), round_id="sim:3", backend="master", options={"last": 3})
    with pytest.raises(
        VLLMValidationError, match=r"option 'last' of backend 'master' is unknown; allowed: first"
    ):
        merged({"type": "token", "prompt_token_ids": [1, 2, 3]}, params)


@pytest.mark.parametrize("automatic", [False, True])
def test_a_request_that_named_no_round_says_so(state: RequestState, automatic: bool) -> None:
    state.automatic = automatic
    _, made = merged({"type": "token", "prompt_token_ids": [7, 8], BOUNDARIES: (2, (1,))}, SamplingParams())
    assert made is not None
    assert made.automatic is automatic
