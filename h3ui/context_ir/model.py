"""What a prompt in the Context-IR format consists of; joined, its parts are exactly the text they were read from.

Frozen and pure: every character of a text is in one field, so nothing is lost that this module does not know.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from backend.types import FPS

BASE_SECTIONS = ("integrated_multimodal_description", "overall_soundscape", "non_diegetic_music")
REFERENCE_SECTIONS = (
    "subject_definitions",
    "summary",
    "retention_analysis",
    "detailed_description",
    "overall_soundscape",
    "non_diegetic_music",
)
SECTIONS = (*BASE_SECTIONS[:1], *REFERENCE_SECTIONS)
DESCRIPTIONS = ("integrated_multimodal_description", "detailed_description")


class Form(StrEnum):
    """Which form a text has: three sections, six of them, or none."""

    FREE = "free"
    BASE = "base"
    REFERENCE = "reference"

    @property
    def sections(self) -> tuple[str, ...]:
        """The sections of this form in order; () for free text."""
        return {Form.FREE: (), Form.BASE: BASE_SECTIONS, Form.REFERENCE: REFERENCE_SECTIONS}[self]

    @property
    def description(self) -> str:
        """The section that holds the shots; "" for free text."""
        return {Form.FREE: "", Form.BASE: DESCRIPTIONS[0], Form.REFERENCE: DESCRIPTIONS[1]}[self]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The video a prompt is written for: its frames, which keyframes it has, and the tags of its references."""

    num_frames: int = 124
    first_frame: bool = False
    last_frame: bool = False
    references: bool = False  # made from references, also while none was added
    tags: tuple[tuple[str, ...], ...] = ()

    @property
    def duration_s(self) -> float:
        """Seconds of the video that is made."""
        return self.num_frames / FPS

    @property
    def form(self) -> Form:
        """The form a prompt for this video has."""
        return Form.REFERENCE if self.references else Form.BASE


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Words that are spoken or sung, `<d>[English] Hello.</d>`; `before` and `after` are the markup around them.

    `language` is "" where the tag is missing; `speakers` are the ids named before it, such as ("S1", "S2").
    """

    before: str  # "<d>["
    language: str
    between: str  # "] "
    words: str
    after: str  # "</d>"
    speakers: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """As it stands in the prompt."""
        return f"{self.before}{self.language}{self.between}{self.words}{self.after}"


Piece = str | Line


@dataclass(frozen=True, slots=True, kw_only=True)
class Shot:
    """One shot. `head` is `[Shot 2] At 00:03.500, `; `start_s` is None where no time is given; `gap` ends it."""

    number: int
    start_s: float | None
    head: str
    body: str
    gap: str = ""

    @property
    def text(self) -> str:
        """As it stands in the prompt."""
        return f"{self.head}{self.body}{self.gap}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One section: `head` is name, colon and space, `body` what stands before any shot, `gap` the space after it."""

    name: str
    head: str
    body: str
    shots: tuple[Shot, ...] = ()
    gap: str = ""

    @property
    def text(self) -> str:
        """As it stands in the prompt."""
        return f"{self.head}{self.body}{''.join(shot.text for shot in self.shots)}{self.gap}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A prompt. `opening` stands before the first section: the instruction of keyframes, or all of a free text."""

    opening: str
    sections: tuple[Section, ...] = ()

    @property
    def text(self) -> str:
        """The prompt itself."""
        return self.opening + "".join(section.text for section in self.sections)

    @property
    def form(self) -> Form:
        """Reference form as soon as one of its own sections is there."""
        names = {section.name for section in self.sections}
        if not names:
            return Form.FREE
        return Form.REFERENCE if names & set(REFERENCE_SECTIONS[:4]) else Form.BASE

    @property
    def description(self) -> Section | None:
        """The section with the shots."""
        return next((section for section in self.sections if section.name in DESCRIPTIONS), None)

    @property
    def shots(self) -> tuple[Shot, ...]:
        """Every shot, () where there is no description."""
        return self.description.shots if self.description is not None else ()

    def section(self, name: str) -> Section | None:
        """The first section of that name."""
        return next((section for section in self.sections if section.name == name), None)


def starts(shots: tuple[Shot, ...]) -> tuple[float, ...]:
    """When each shot begins, in seconds: the first at 0, one without a time with the one before it."""
    found: list[float] = []
    for index, shot in enumerate(shots):
        found.append(0.0 if index == 0 else shot.start_s if shot.start_s is not None else found[-1])
    return tuple(found)
