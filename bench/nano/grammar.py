"""Sentences for clips: many ways to say the same thing, with details sometimes left out, and a split kept for tests.

Knows what a `Clip` says and nothing of how it is drawn. Two things are never trained: the triples (shape, colour,
motion) of `held_out`, and the sentence frames of `TEST_FRAMES`.
"""

from __future__ import annotations

import random

from bench.nano.shapes import SHAPES
from bench.nano.world import COLORS, GROUNDS, MOTIONS, PATTERNS, PLACES, SIZES, TEXTURES, TONES, Clip

_SHAPE_WORDS = {
    "circle": ("circle", "disc", "ball", "dot"),
    "square": ("square", "box", "block"),
    "triangle": ("triangle", "pyramid"),
    "star": ("star", "five-pointed star"),
    "ring": ("ring", "hoop", "donut"),
    "cross": ("cross", "plus sign"),
    "heart": ("heart",),
}
_SIZE_WORDS = {
    "small": ("small", "little", "tiny"),
    "medium": ("medium-sized", "medium", ""),
    "large": ("large", "big", "huge"),
}
_TEXTURE_WORDS = {
    "solid": ("", "", "plain", "solid"),
    "striped": ("striped",),
    "spotted": ("spotted", "dotted"),
    "outlined": ("outlined", "bordered"),
}
_COLOR_WORDS = {"purple": ("purple", "violet"), "red": ("red", "red", "crimson")}
_GROUND_WORDS = {"gray": ("gray", "grey"), "teal": ("teal", "dark teal"), "maroon": ("maroon", "dark red")}
_PATTERN_WORDS = {
    "plain": ("a {ground} background", "a plain {ground} background", "a flat {ground} wall"),
    "gradient": ("a {ground} gradient", "a {ground} background that fades", "a shaded {ground} background"),
    "stripes": ("{ground} stripes", "a striped {ground} background", "a {ground} curtain of stripes"),
    "checks": ("{ground} checks", "a checkered {ground} background", "a {ground} checkerboard"),
}
_PLACE_WORDS = {
    "left": ("on the left", "on the left side", "at the left"),
    "center": ("in the middle", "in the center", ""),
    "right": ("on the right", "on the right side", "at the right"),
}
_MOTION_WORDS: dict[str, tuple[str, ...]] = {
    "right": (
        "moves to the right",
        "slides from left to right",
        "glides rightward",
        "travels right",
        "crosses from left to right",
    ),
    "left": (
        "moves to the left",
        "slides from right to left",
        "glides leftward",
        "travels left",
        "crosses from right to left",
    ),
    "up": ("moves up", "rises", "floats upward", "climbs to the top", "drifts up"),
    "down": ("moves down", "sinks", "falls slowly", "descends", "drifts down"),
    "bounce": ("bounces", "bounces up and down", "hops on the floor", "keeps bouncing", "jumps up and down"),
    "clockwise": ("circles clockwise", "orbits clockwise", "goes around clockwise", "travels in a clockwise circle"),
    "counterclockwise": ("circles counterclockwise", "orbits counterclockwise", "goes around anticlockwise"),
    "grow": ("grows", "gets bigger", "swells", "grows larger and larger"),
    "shrink": ("shrinks", "gets smaller", "dwindles", "becomes smaller and smaller"),
    "still": ("stays still", "does not move", "rests", "hovers in place", "stands still"),
}
_DRIFT_WORDS = {
    1: ("to the right", "while moving right", "from left to right"),
    -1: ("to the left", "while moving left", "from right to left"),
}
_PAN_WORDS = {
    "pan right": ("the camera pans right past", "the camera moves right across", "camera pan to the right over"),
    "pan left": ("the camera pans left past", "the camera moves left across", "camera pan to the left over"),
}
_TONE_WORDS = {
    "hum": ("a steady hum", "a continuous tone", "it hums", "a long even note"),
    "beeps": ("short beeps", "a row of beeps", "it beeps", "a beeping sound"),
}
_DRONE_WORDS = ("over a deep drone", "with a low drone underneath", "and a bass drone")
_OPENINGS = ("", "", "", "A video of ", "We see ", "An animation: ", "In this shot, ", "A short clip: ")

# {subject} {motion} {ground} {sound}; a frame may leave the sound out, and then it follows the shape alone.
FRAMES = (
    "{opening}{subject} {motion} in front of {ground}. {Sound}.",
    "{opening}{subject} {motion} against {ground}, with {sound}.",
    "{opening}{subject} {motion} on {ground}. {Sound}.",
    "{opening}{subject} {motion}. The background is {ground}. {Sound}.",
    "{subject} {motion}, {ground} behind. {Sound}.",
    "In front of {ground}, {subject} {motion}. {Sound}.",
    "{subject} {motion} before {ground}.",
    "{Sound} while {subject} {motion} in front of {ground}.",
    "{opening}{subject} {motion}.",
)
TEST_FRAMES = (
    "{opening}{subject} that {motion} before {ground}; {sound}.",
    "Against {ground}, {subject} {motion}. We hear {sound}.",
)
_PAN_FRAMES = (
    "{Pan} {subject} in front of {ground}. {Sound}.",
    "{Pan} {subject} on {ground}, with {sound}.",
    "{Pan} {subject}. Behind it, {ground}. {Sound}.",
    "{Pan} {subject} before {ground}.",
)
TEST_PAN_FRAMES = ("{Pan} {subject}, {ground} behind; {sound}.",)


def held_out(clip: Clip) -> bool:
    """Whether this (shape, colour, motion) is kept from training: one triple in twelve, none of a kind entirely."""
    return (clip.shape * 5 + clip.color * 7 + clip.motion * 11) % 12 == 3


def describe(clip: Clip, rng: random.Random, test: bool = False, subject: str | None = None) -> str:
    """One sentence or two for `clip`; `test` takes the frames that training never sees.

    `subject` replaces the words for the shape, as in "<Picture 1>"; then its own sound words stay out as well.
    """
    values = {"opening": rng.choice(_OPENINGS)}
    subject = subject or _subject(clip, rng)
    values["ground"] = _ground(clip, rng)
    sound = _sound(clip, rng)
    values["sound"], values["Sound"] = sound, _capital(sound)
    motion = MOTIONS[clip.motion]
    if motion in _PAN_WORDS:
        frame = rng.choice(TEST_PAN_FRAMES if test else _PAN_FRAMES)
        pan = rng.choice(_PAN_WORDS[motion])
        values["Pan"] = _capital(pan)
    else:
        frame = rng.choice(TEST_FRAMES if test else FRAMES)
        values["motion"] = _motion(clip, rng)
    return _finish(frame.format(subject=subject, **values), rng)


def imitate(clip: Clip, rng: random.Random, subject: str | None = None, video: str = "<Video 1>") -> str:
    """A sentence whose motion is that of a reference video: "A red star moves like <Video 1> ..."."""
    verb = rng.choice(("moves like", "follows the motion of", "moves the way it does in", "copies the movement of"))
    ground = f" {rng.choice(('in front of', 'against', 'before'))} {_ground(clip, rng)}"
    return _finish(f"{subject or _subject(clip, rng)} {verb} {video}{ground}.", rng)


def sounds_like(prompt: str, rng: random.Random, audio: str = "<Audio 1>") -> str:
    """`prompt` with a sentence that takes the pitch from a reference sound."""
    words = ("It sounds like {audio}.", "The sound is {audio}.", "Its tone is the one of {audio}.", "We hear {audio}.")
    return f"{prompt} {rng.choice(words).format(audio=audio)}"


def _subject(clip: Clip, rng: random.Random) -> str:
    color = list(COLORS)[clip.color]
    words = [
        "" if rng.random() < 0.2 else rng.choice(_SIZE_WORDS[SIZES[clip.size]]),
        rng.choice(_COLOR_WORDS.get(color, (color,))),
        rng.choice(_TEXTURE_WORDS[TEXTURES[clip.texture]]),
    ]
    if rng.random() < 0.3:
        words[1], words[2] = words[2], words[1]  # "a striped red star"
    phrase = " ".join(word for word in (*words, rng.choice(_SHAPE_WORDS[SHAPES[clip.shape]])) if word)
    article = rng.choice(("a", "a", "the", "one")) if phrase[0] not in "aeiou" else "an"
    return f"{article} {phrase}"


def _ground(clip: Clip, rng: random.Random) -> str:
    ground = list(GROUNDS)[clip.ground]
    return rng.choice(_PATTERN_WORDS[PATTERNS[clip.pattern]]).format(
        ground=rng.choice(_GROUND_WORDS.get(ground, (ground,)))
    )


def _motion(clip: Clip, rng: random.Random) -> str:
    words = rng.choice(_MOTION_WORDS[MOTIONS[clip.motion]])
    if clip.drift:
        return f"{words} {rng.choice(_DRIFT_WORDS[clip.drift])}"
    place = PLACES[clip.place]
    if MOTIONS[clip.motion] in ("up", "down", "bounce", "grow", "shrink", "still"):
        return f"{words} {rng.choice(_PLACE_WORDS[place])}".strip()
    return words


def _sound(clip: Clip, rng: random.Random) -> str:
    words = rng.choice(_TONE_WORDS[TONES[clip.tone]])
    if words.startswith("it "):
        words = f"the sound of it {'humming' if clip.tone == 0 else 'beeping'}"
    return f"{words} {rng.choice(_DRONE_WORDS)}" if clip.drone else words


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _finish(text: str, rng: random.Random) -> str:
    """Capital or not, full stop or not: people write both."""
    text = " ".join(text.split())
    if rng.random() < 0.75:
        text = _capital(text)
    return text[:-1] if rng.random() < 0.15 and text.endswith(".") else text
