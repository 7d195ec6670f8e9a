"""One thing that is wrong with a prompt: where, in words, and the change that mends it where that is mechanical.

It knows no rule; the rules are the `check_*` modules beside it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Put `text` in place of `prompt[start:end]`; `label` is what its button says."""

    start: int
    end: int
    text: str
    label: str = "Fix"

    def applied(self, prompt: str) -> str:
        """The prompt after the change."""
        return prompt[: self.start] + self.text + prompt[self.end :]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`code` names the rule, `at` is an offset into the prompt, None for what is wrong with it as a whole."""

    code: str
    message: str
    at: int | None = None
    change: Change | None = None

    def line(self, prompt: str) -> int | None:
        """The line it stands in, from 1."""
        return None if self.at is None else prompt.count("\n", 0, self.at) + 1

    @property
    def key(self) -> str:
        """Names it among the findings of one prompt, for a button."""
        return f"{self.code}:{'' if self.at is None else self.at}"


def seconds(value: float) -> str:
    """Seconds for people: "5.17 s", "8 s"."""
    return f"{round(value, 2):g} s"
