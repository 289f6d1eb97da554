"""AutoGen's OpenAI client, whose calls become members of the round they are made in."""

from __future__ import annotations

from typing import Any

from autogen_core.models import ModelFamily, ModelInfo
from autogen_ext.models.openai import OpenAIChatCompletionClient
from openai import AsyncOpenAI
from tokendance_sdk.joining import joining

UNKNOWN_MODEL = ModelInfo(
    vision=False,
    function_calling=True,
    json_output=True,
    family=ModelFamily.UNKNOWN,
    structured_output=True,
    multiple_system_messages=False,
)
"""What is assumed of a model whose name AutoGen does not know."""


class TokenDanceChatCompletionClient(OpenAIChatCompletionClient):
    """`OpenAIChatCompletionClient`, with its arguments, for the participants of a `BroadcastGroupChat`.

    A participant's first call of a round goes out with the round's one request, later ones (its tools) alone and
    tagged. Outside a broadcast it is the ordinary client. `model_info` may be left out for models that AutoGen does
    not know (`UNKNOWN_MODEL`).

    Raises, from `create` and `create_stream`: `MemberFailedError` when this member failed, and what the OpenAI client
    raises when the round as a whole did.
    """

    component_provider_override = "tokendance_sdk.integrations.autogen.TokenDanceChatCompletionClient"
    _client: AsyncOpenAI

    def __init__(self, **arguments: Any) -> None:
        try:
            super().__init__(**arguments)
        except ValueError as error:
            if "model_info is required" not in str(error):
                raise
            super().__init__(**arguments, model_info=UNKNOWN_MODEL)
        self._client = joining(self._client)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._client = joining(self._client)
