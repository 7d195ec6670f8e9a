"""H3's limits, each with its source: frames, canvas, references, and `validate`, which reports every problem at once.

Stdlib only. It knows requests and media reports; it opens no file and knows no machine.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from backend.errors import InvalidRequest, Problem
from backend.types import FPS, GenerationRequest, Geometry, MediaReport, Reference, ReferenceKind, Sampling

MIN_DURATION_S = 4.0  # model README; diffusers' 5 s is overridden
MAX_DURATION_S = 15.0  # model README; 15 s snaps to 362 frames, 15.083 s
FRAMES_PER_CHUNK = 17  # vae/config.json clip_length
LATENTS_PER_CHUNK = 5  # ceil(17 / 4), AutoencoderKLMiniMaxH3.tokens_chunk_size
AUDIO_LATENTS_PER_SECOND = 40  # 32 kHz / hop 800, audio_vae/config.json encoder_rates
MIN_FRAMES = 107  # 4 s snapped
MAX_FRAMES = 362  # 15 s snapped
MIN_RATIO, MAX_RATIO = 1 / 4, 4.0  # diffusers MINIMAX_H3_MIN/MAX_ASPECT_RATIO
MAX_CANVAS_PIXELS = 768 * 1344  # h3-facts 2; a canvas rounded to 32 px may exceed it by ROUNDING_SLACK
MAX_SIDE = 2048  # px, of a 4:1 canvas of MAX_CANVAS_PIXELS
ROUNDING_SLACK = 1.04  # largest excess of `canvas_for_ratio` over all ratios is 3.6 %, at 1856x576
RATIOS = {"21:9": (21, 9), "16:9": (16, 9), "4:3": (4, 3), "1:1": (1, 1), "3:4": (3, 4), "9:16": (9, 16)}
DEFAULT_RATIO = "16:9"
MAX_PROMPT_CHARS = 7000
MIN_STEPS, MAX_STEPS = 2, 200  # sigma points; MiniMaxH3Scheduler needs 2, vLLM-Omni's request bound is 200
MAX_ADAPTER_SCALE = 10.0  # far beyond use; a LoRA is made for 1
MAX_SEED = 2**63 - 1  # SGLang request validation; torch takes more
MAX_OF_KIND = {ReferenceKind.IMAGE: 9, ReferenceKind.VIDEO: 3, ReferenceKind.AUDIO: 3}  # model README
MAX_REFERENCES = 12
MIN_CLIP_S, MAX_CLIP_S = 2.0, 15.0  # of one video or audio reference, model README
MAX_CLIPS_TOTAL_S = 15.0  # of all videos together, and of all audio clips together: two budgets
# Qwen's special tokens for vision blocks, tokenizer_config.json: in a prompt with media they would count as blocks.
VISION_TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
TAG_NAMES = {ReferenceKind.IMAGE: "Picture", ReferenceKind.VIDEO: "Video", ReferenceKind.AUDIO: "Audio"}
CLIP_TOLERANCE_S = 0.1  # containers round durations, and our own 15 s clip lasts 362 frames, 15.083 s


def snap_num_frames(num_frames: int) -> int:
    """The next `17 n + 5` at or above `num_frames`: what the video VAE can decode."""
    return num_frames + (LATENTS_PER_CHUNK - num_frames) % FRAMES_PER_CHUNK


def nearest_num_frames(num_frames: int) -> int:
    """The valid frame count closest to `num_frames`, the larger one in a tie."""
    above = snap_num_frames(num_frames)
    nearest = above if above - num_frames <= FRAMES_PER_CHUNK // 2 else above - FRAMES_PER_CHUNK
    return min(max(nearest, MIN_FRAMES), MAX_FRAMES)


def num_frames_for_duration(duration_s: float) -> int:
    """Frames made for `duration_s` seconds: rounded to the 24 fps grid, then snapped up (4 -> 107, 15 -> 362).

    Raises InvalidRequest outside 4 to 15 s.
    """
    if not MIN_DURATION_S <= duration_s <= MAX_DURATION_S:  # also refuses NaN
        nearest = MIN_DURATION_S if not duration_s > MAX_DURATION_S else MAX_DURATION_S
        rule = f"must be {MIN_DURATION_S:g} to {MAX_DURATION_S:g} seconds"
        problem = Problem(
            field="duration", value=f"{duration_s:g}", rule=rule, way_out=f"nearest is {nearest:g} seconds"
        )
        raise InvalidRequest((problem,))
    return min(max(snap_num_frames(round(duration_s * FPS)), MIN_FRAMES), MAX_FRAMES)


def num_latent_frames(num_frames: int) -> int:
    """Video latents of `17 n + 5` frames: `5 n + 2`."""
    return (num_frames - LATENTS_PER_CHUNK) // FRAMES_PER_CHUNK * LATENTS_PER_CHUNK + 2


def num_audio_latents(num_frames: int) -> int:
    """Audio latents a channel for `num_frames` frames."""
    return round(num_frames / FPS * AUDIO_LATENTS_PER_SECOND)


def canvas_for_ratio(aspect_width: float, aspect_height: float, geometry: Geometry) -> tuple[int, int]:
    """(width, height) in px for an aspect ratio: short edge first, area cap second, rounded to the multiple last.

    Same arithmetic as diffusers' `resolve_canvas_size`. Raises InvalidRequest outside 1:4 to 4:1.
    """
    ratio = aspect_width / aspect_height if aspect_width > 0 and aspect_height > 0 else 0.0
    if not MIN_RATIO <= ratio <= MAX_RATIO:
        shown = f"{aspect_width:g}:{aspect_height:g}"
        raise InvalidRequest((Problem(field="ratio", value=shown, rule="must be between 1:4 and 4:1"),))
    edge = geometry.canvas_short_edge
    width, height = (edge * ratio, float(edge)) if ratio >= 1 else (float(edge), edge / ratio)
    if width * height > geometry.canvas_max_pixels:
        scale = math.sqrt(geometry.canvas_max_pixels / (width * height))
        width, height = width * scale, height * scale
    multiple = geometry.canvas_multiple
    return max(multiple, round(width / multiple) * multiple), max(multiple, round(height / multiple) * multiple)


def parse_ratio(text: str) -> tuple[float, float]:
    """("16:9") -> (16, 9). Raises InvalidRequest for anything that is no pair of positive numbers."""
    parts = text.split(":")
    try:
        width, height = (float(part) for part in parts)
    except ValueError:
        width = height = 0.0
    if not (0 < width < math.inf and 0 < height < math.inf):
        known = ", ".join(RATIOS)
        problem = Problem(field="ratio", value=text, rule="must be W:H", way_out=f"usual ratios are {known}")
        raise InvalidRequest((problem,))
    return width, height


def canvas_of(sampling: Sampling, geometry: Geometry, keyframe_size: tuple[int, int] | None) -> tuple[int, int]:
    """(width, height) a request is rendered at: given, else from `ratio`, else the first keyframe's, else 16:9."""
    if sampling.width is not None and sampling.height is not None:
        return sampling.width, sampling.height
    if sampling.ratio is not None:
        return canvas_for_ratio(*parse_ratio(sampling.ratio), geometry)
    if keyframe_size is not None:
        return canvas_for_ratio(*keyframe_size, geometry)
    return canvas_for_ratio(*RATIOS[DEFAULT_RATIO], geometry)


def reference_tags(kinds: Iterable[tuple[ReferenceKind, bool]]) -> tuple[tuple[str, ...], ...]:
    """The prompt tags of each reference, given (kind, has a soundtrack) in request order.

    Numbers count by modality, and a video's soundtrack takes the next audio number before its video tag does, as
    diffusers' `_build_presentation` labels them: a video with sound is ("<Audio 1>", "<Video 1>").
    """
    counts: Counter[ReferenceKind] = Counter()
    tags = []
    for kind, has_sound in kinds:
        parts = (ReferenceKind.AUDIO, kind) if kind is ReferenceKind.VIDEO and has_sound else (kind,)
        counts.update(parts)
        tags.append(tuple(f"<{TAG_NAMES[part]} {counts[part]}>" for part in parts))
    return tuple(tags)


def validate(request: GenerationRequest, media: Mapping[Path, MediaReport] | None = None) -> tuple[Problem, ...]:
    """Everything wrong with `request`, () when nothing is.

    `media` holds the probed reports of its files, where known; budgets are checked on what is used of each clip.
    """
    return (
        *_prompt_problems(request),
        *_sampling_problems(request.sampling),
        *_file_problems(request),
        *_reference_problems(request, media or {}),
    )


def resolve(
    request: GenerationRequest, geometry: Geometry, keyframe_size: tuple[int, int] | None, seed: int
) -> GenerationRequest:
    """`request` with canvas and seed made concrete; raises InvalidRequest when the canvas cannot be."""
    width, height = canvas_of(request.sampling, geometry, keyframe_size)
    drawn = request.sampling.seed if request.sampling.seed is not None else seed
    sampling = dataclasses.replace(request.sampling, width=width, height=height, ratio=None, seed=drawn)
    return dataclasses.replace(request, sampling=sampling)


def _prompt_problems(request: GenerationRequest) -> Iterable[Problem]:
    prompt = request.prompt
    if not prompt.strip():
        yield Problem(field="prompt", value="", rule="must not be empty", way_out="describe what to see and hear")
    elif len(prompt) > MAX_PROMPT_CHARS:
        over = len(prompt) - MAX_PROMPT_CHARS
        rule = f"at most {MAX_PROMPT_CHARS} characters"
        yield Problem(field="prompt", value=f"{len(prompt)} characters", rule=rule, way_out=f"shorten it by {over}")
    if not _is_text(prompt):
        yield Problem(field="prompt", value="", rule="must be valid Unicode text", way_out="type it again, as UTF-8")
    has_media = request.first_frame is not None or request.last_frame is not None or request.references
    for token in VISION_TOKENS if has_media else ():
        if token in prompt:
            rule = "stands for a picture inside the model and cannot be written beside pictures"
            yield Problem(field="prompt", value=token, rule=rule, way_out="remove it; name pictures as <Picture 1>")


def _is_text(text: str) -> bool:
    """Whether `text` can be stored: half a surrogate pair, as broken input brings, cannot."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _sampling_problems(sampling: Sampling) -> Iterable[Problem]:
    frames = sampling.num_frames
    if frames != snap_num_frames(frames) or not MIN_FRAMES <= frames <= MAX_FRAMES:
        rule = "must be 17n+5" if frames != snap_num_frames(frames) else f"must be {MIN_FRAMES} to {MAX_FRAMES}"
        way_out = f"nearest is {nearest_num_frames(frames)}"
        yield Problem(field="num_frames", value=str(frames), rule=rule, way_out=way_out)
    yield from _canvas_problems(sampling)
    steps = sampling.num_inference_steps
    if not MIN_STEPS <= steps <= MAX_STEPS:
        nearest = min(max(steps, MIN_STEPS), MAX_STEPS)
        rule = f"must be {MIN_STEPS} to {MAX_STEPS}"
        yield Problem(field="num_inference_steps", value=str(steps), rule=rule, way_out=f"nearest is {nearest}")
    if sampling.seed is not None and not 0 <= sampling.seed <= MAX_SEED:
        rule = f"must be 0 to {MAX_SEED}"
        yield Problem(field="seed", value=str(sampling.seed), rule=rule, way_out="leave it out for a random seed")
    for name in ("flow_shift", "audio_flow_shift"):
        shift = getattr(sampling, name)
        if shift is not None and not 0 < shift < math.inf:
            way_out = "leave it out for the checkpoint's own"
            yield Problem(field=name, value=str(shift), rule="must be a positive number", way_out=way_out)


def _canvas_problems(sampling: Sampling) -> Iterable[Problem]:
    width, height = sampling.width, sampling.height
    if sampling.ratio is not None and not (width is None and height is None):
        rule = "a size and a ratio exclude each other"
        yield Problem(field="ratio", value=sampling.ratio, rule=rule, way_out="give width and height, or a ratio")
    if width is None and height is None:
        if sampling.ratio is not None:
            try:
                canvas_for_ratio(*parse_ratio(sampling.ratio), Geometry())
            except InvalidRequest as error:
                yield from error.problems
        return
    if width is None or height is None:
        field, value = ("width", width) if height is None else ("height", height)
        rule = "width and height go together"
        yield Problem(field=field, value=str(value), rule=rule, way_out="give both or neither")
        return
    for field, value in (("width", width), ("height", height)):
        if value < 32 or value % 32:
            nearest = min(max(32, round(value / 32) * 32), MAX_SIDE)
            rule = "must be a positive multiple of 32"
            yield Problem(field=field, value=str(value), rule=rule, way_out=f"nearest is {nearest}")
    if width > 0 and height > 0:
        if not MIN_RATIO <= width / height <= MAX_RATIO:
            yield Problem(field="width:height", value=f"{width}:{height}", rule="must be between 1:4 and 4:1")
        if width * height > MAX_CANVAS_PIXELS * ROUNDING_SLACK:
            fit = "x".join(str(side) for side in canvas_for_ratio(min(max(width / height, 0.25), 4), 1, Geometry()))
            rule = f"at most {MAX_CANVAS_PIXELS} pixels (1344x768)"
            yield Problem(field="width x height", value=f"{width}x{height}", rule=rule, way_out=f"nearest is {fit}")


def _file_problems(request: GenerationRequest) -> Iterable[Problem]:
    named = [("first_frame", request.first_frame), ("last_frame", request.last_frame)]
    named += [(f"references[{index}]", reference.path) for index, reference in enumerate(request.references)]
    for field, path in named:
        if path is not None and (rule := no_file(path)):
            yield Problem(field=field, value=_shown(path), rule=rule, way_out="check the path")
    for index, adapter in enumerate(request.sampling.adapters):
        if rule := no_file(adapter.path):
            yield Problem(field=f"adapters[{index}]", value=str(adapter.path), rule=rule, way_out="check the path")
        if not abs(adapter.scale) <= MAX_ADAPTER_SCALE:  # also refuses NaN
            rule = f"must be {-MAX_ADAPTER_SCALE:g} to {MAX_ADAPTER_SCALE:g}"
            way_out = "1 is as it was made"
            yield Problem(field=f"adapters[{index}].scale", value=f"{adapter.scale:g}", rule=rule, way_out=way_out)


def _shown(path: Path) -> str:
    return str(path).encode("utf-8", "backslashreplace").decode("utf-8")


def no_file(path: Path) -> str:
    """Why there is no file to read at `path`, or ""."""
    if not _is_text(str(path)):
        return "its name is not valid UTF-8; rename it"
    try:
        if path.is_file():
            return ""
        if path.is_dir():
            return "is a folder, not a file"
        return "is no regular file" if path.exists() else "there is no such file"
    except OSError as error:  # a name that is too long, a folder that may not be entered
        return f"cannot be looked at: {error.strerror or error}"


def _reference_problems(request: GenerationRequest, media: Mapping[Path, MediaReport]) -> Iterable[Problem]:
    references = request.references
    if not references:
        return
    for field, path in (("first_frame", request.first_frame), ("last_frame", request.last_frame)):
        if path is not None:
            way_out = "use the picture as a reference image, or drop the references"
            yield Problem(field=field, value=path.name, rule="cannot be combined with references", way_out=way_out)
    if len(references) > MAX_REFERENCES:
        rule = f"at most {MAX_REFERENCES} in all"
        yield Problem(field="references", value=f"{len(references)} files", rule=rule, way_out="remove some")
    kinds = [_kind_of(reference, media) for reference in references]
    for kind, limit in MAX_OF_KIND.items():
        if (count := kinds.count(kind)) > limit:
            way_out = f"remove {count - limit}"
            yield Problem(
                field="references", value=f"{count} {kind}", rule=f"at most {limit} {kind} files", way_out=way_out
            )
    if set(kinds) == {ReferenceKind.AUDIO}:
        rule = "audio needs at least one image or video reference"
        yield Problem(field="references", value=f"{len(kinds)} audio", rule=rule, way_out="add an image or a video")
    yield from _clip_problems(references, kinds, media)


def _kind_of(reference: Reference, media: Mapping[Path, MediaReport]) -> ReferenceKind | None:
    report = media.get(reference.path)
    return report.kind if report is not None else reference.kind


def _clip_problems(
    references: Sequence[Reference], kinds: Sequence[ReferenceKind | None], media: Mapping[Path, MediaReport]
) -> Iterable[Problem]:
    totals: dict[ReferenceKind, float] = defaultdict(float)
    for index, (reference, kind) in enumerate(zip(references, kinds, strict=True)):
        if kind not in (ReferenceKind.VIDEO, ReferenceKind.AUDIO):
            continue
        report = media.get(reference.path)
        used = used_length_s(reference, report.duration_s if report else None)
        if reference.start_s < 0 or (used is not None and not used > 0):
            rule = "the part to use must lie inside the clip"
            yield Problem(field=f"references[{index}]", value=f"start {reference.start_s:g} s", rule=rule)
        elif used is not None:
            totals[kind] += used
            if not MIN_CLIP_S - CLIP_TOLERANCE_S <= used <= MAX_CLIP_S + CLIP_TOLERANCE_S:
                article = "an" if kind is ReferenceKind.AUDIO else "a"
                rule = f"{article} {kind} reference must use {MIN_CLIP_S:g} to {MAX_CLIP_S:g} seconds"
                way_out = "trim it with start and length" if used > MAX_CLIP_S else "use a longer clip"
                value = f"{reference.path.name}, {used:.2f} s"
                yield Problem(field=f"references[{index}]", value=value, rule=rule, way_out=way_out)
    for kind, total in totals.items():
        if total > MAX_CLIPS_TOTAL_S + CLIP_TOLERANCE_S:
            rule = f"at most {MAX_CLIPS_TOTAL_S:g} seconds of {kind} in all"
            yield Problem(
                field="references", value=f"{total:.1f} s of {kind}", rule=rule, way_out="trim or remove clips"
            )


def used_length_s(reference: Reference, duration_s: float | None) -> float | None:
    """Seconds of a clip that a reference uses; None when neither its length nor its duration is known."""
    rest = None if duration_s is None else duration_s - reference.start_s
    if reference.length_s is None:
        return rest
    return reference.length_s if rest is None else min(reference.length_s, rest)
