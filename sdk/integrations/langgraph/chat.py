"""The chat model whose calls become rounds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.output_parsers import JsonOutputParser, PydanticOutputParser
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_json_schema, convert_to_openai_tool
from pydantic import Field
from tokendance_sdk.integrations.langgraph.gather import Call
from tokendance_sdk.integrations.langgraph.messages import chat_result, chunk_of
from tokendance_sdk.results import AgentResult

if TYPE_CHECKING:
    from tokendance_sdk.events import RoundEvent
    from tokendance_sdk.integrations.langgraph.broadcaster import RoundBroadcaster

Tool = dict[str, Any] | type | Callable[..., Any] | BaseTool


class RoundChatModel(BaseChatModel):
    """A LangChain chat model; calls made in the same superstep of a graph are sent as one round.

    Get it from `RoundBroadcaster.chat_model`. It takes what a chat completion takes: `model.bind(temperature=0.2,
    fidelity="exact", agent_id="judge")`. Messages have `response_metadata["tokendance"]`, what was reused.

    Raises (from `invoke` and the like):
        MemberFailedError: this call failed; others of its round may not have.
        openai.OpenAIError: the round as a whole was refused, or could not be sent.
        TokenDanceError: the broadcaster has no client of this kind (sync, async).
    """

    model_name: str
    owner: Any = Field(exclude=True, repr=False)

    @property
    def _llm_type(self) -> str:
        return "tokendance"

    @property
    def _identifying_params(self) -> Mapping[str, Any]:
        return {"model_name": self.model_name, **self._owner.defaults}

    @property
    def _owner(self) -> RoundBroadcaster:
        owner: RoundBroadcaster = self.owner
        return owner

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        call = self._call(messages, stop, run_manager, kwargs)
        with closing(self._owner.rounds.outcomes(call)) as outcomes:
            return self._result(call, next(outcomes))

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        call = self._call(messages, stop, run_manager, kwargs)
        async with aclosing(self._owner.async_rounds.outcomes(call)) as outcomes:
            return self._result(call, await anext(outcomes))

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        call = self._call(messages, stop, run_manager, kwargs, streamed=True)
        said = ""
        with closing(self._owner.rounds.outcomes(call)) as outcomes:
            for outcome in outcomes:
                chunk = self._chunk(call, outcome)
                if chunk is None:
                    continue
                said += chunk.text
                if run_manager:
                    run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                yield chunk
        self._owner.calls.remember(call.place.session_id, said)

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        call = self._call(messages, stop, run_manager, kwargs, streamed=True)
        said = ""
        async with aclosing(self._owner.async_rounds.outcomes(call)) as outcomes:
            async for outcome in outcomes:
                chunk = self._chunk(call, outcome)
                if chunk is None:
                    continue
                said += chunk.text
                if run_manager:
                    await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                yield chunk
        self._owner.calls.remember(call.place.session_id, said)

    def _call(
        self,
        messages: Sequence[BaseMessage],
        stop: list[str] | None,
        run_manager: CallbackManagerForLLMRun | AsyncCallbackManagerForLLMRun | None,
        kwargs: Mapping[str, Any],
        streamed: bool = False,
    ) -> Call:
        fields = {**kwargs, **({"stop": stop} if stop else {})}
        model = fields.pop("model", None) or self.model_name
        metadata = run_manager.metadata if run_manager is not None else None
        return self._owner.calls.call(model, messages, fields, metadata, streamed=streamed)

    def _result(self, call: Call, outcome: AgentResult | RoundEvent) -> ChatResult:
        assert isinstance(outcome, AgentResult), "only streamed calls are given pieces"
        self._owner.calls.remember(call.place.session_id, outcome.text)
        return chat_result(outcome, call.model, call.place.round_id)

    def _chunk(self, call: Call, outcome: AgentResult | RoundEvent) -> ChatGenerationChunk | None:
        if not isinstance(outcome, AgentResult):
            return chunk_of(outcome.data, call.model)
        if call.begun:
            return None
        choices = [{**choice, "delta": choice.get("message")} for choice in outcome.choices]
        return chunk_of({"choices": choices, "usage": outcome.usage}, call.model)

    def bind_tools(
        self,
        tools: Sequence[Tool],
        *,
        tool_choice: str | bool | dict[str, Any] | None = None,
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """The model with tools.

        Args:
            tool_choice: a tool's name, `auto`, `none`, `any` or True (some tool), or OpenAI's own form.
        """
        formatted = [convert_to_openai_tool(tool, strict=strict) for tool in tools]
        names = {tool.get("function", {}).get("name") for tool in formatted}
        choice: Any = tool_choice
        if tool_choice is True or tool_choice == "any":
            choice = "required"
        elif isinstance(tool_choice, str) and tool_choice in names:
            choice = {"type": "function", "function": {"name": tool_choice}}
        return self.bind(tools=formatted, **({"tool_choice": choice} if choice else {}), **kwargs)

    def with_structured_output(
        self,
        schema: dict[str, Any] | type,
        *,
        include_raw: bool = False,
        method: Literal["json_schema", "function_calling", "json_mode"] = "json_schema",
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, Any]:
        """Answers parsed into `schema` (a pydantic model, a TypedDict, or JSON schema), which the server enforces.

        Raises:
            ValueError: unknown method.
        """
        if method == "function_calling":
            return super().with_structured_output(schema, include_raw=include_raw)
        if method not in ("json_schema", "json_mode"):
            raise ValueError(f"got method {method!r}; allowed: json_schema, function_calling, json_mode")
        shape = convert_to_json_schema(schema)
        form: dict[str, Any] = {"type": "json_object"}
        if method == "json_schema":
            named = {"name": str(shape.get("title", "answer")), "schema": shape}
            form = {"type": "json_schema", "json_schema": {**named, "strict": bool(strict)}}
        traced = {"kwargs": {"method": method, "strict": strict}, "schema": shape}
        model = self.bind(response_format=form, ls_structured_output_format=traced, **kwargs)
        is_model = isinstance(schema, type) and hasattr(schema, "model_validate")
        parser: Runnable[Any, Any] = (
            PydanticOutputParser(pydantic_object=schema) if is_model else JsonOutputParser()
        )
        if not include_raw:
            return model | parser
        parsed = RunnablePassthrough.assign(parsed=itemgetter("raw") | parser, parsing_error=lambda _: None)
        failed = RunnablePassthrough.assign(parsed=lambda _: None)
        return RunnableMap(raw=model) | parsed.with_fallbacks([failed], exception_key="parsing_error")
