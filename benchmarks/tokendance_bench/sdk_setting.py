"""How large the rounds of `sdk` are, and where they go."""

from __future__ import annotations

from dataclasses import dataclass

from openai import AsyncOpenAI, OpenAI

TASK = "Say what you think of it."


@dataclass(frozen=True, slots=True)
class Setting:
    """Rounds of `agents` agents, everybody hearing everybody, against the server at `base_url`."""

    base_url: str
    agents: int
    rounds: int

    @property
    def names(self) -> list[str]:
        """The agents."""
        return [f"agent{n}" for n in range(self.agents)]

    def sync(self) -> OpenAI:
        """A client."""
        return OpenAI(base_url=self.base_url, api_key="k")

    def twin(self) -> AsyncOpenAI:
        """An async client."""
        return AsyncOpenAI(base_url=self.base_url, api_key="k")
