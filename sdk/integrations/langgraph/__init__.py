"""LangGraph: the parallel agents of a graph speak in rounds.

A graph whose nodes call a chat model:

    broadcaster = RoundBroadcaster.from_model(ChatOpenAI(...))
    llm = broadcaster.chat_model                     # in place of the ChatOpenAI
    app = broadcaster.wrap(builder.compile())

A ready node that runs all its agents as one round:

    class State(TypedDict):
        histories: dict[str, str]                        # agent -> private history
        outputs: Annotated[list[Output], keep_once]      # what was said, each output once
        task: str

    broadcaster = RoundBroadcaster(client=OpenAI(...), model="m")
    builder.add_node("round", broadcaster.node())
"""

from tokendance_sdk.errors import MemberFailedError
from tokendance_sdk.integrations.langgraph.broadcaster import RoundBroadcaster
from tokendance_sdk.integrations.langgraph.chat import RoundChatModel
from tokendance_sdk.integrations.langgraph.memory import shared
from tokendance_sdk.integrations.langgraph.node import Output, Update, keep_once
from tokendance_sdk.integrations.langgraph.places import RoundPlace

__all__ = [
    "MemberFailedError",
    "Output",
    "RoundBroadcaster",
    "RoundChatModel",
    "RoundPlace",
    "Update",
    "keep_once",
    "shared",
]
