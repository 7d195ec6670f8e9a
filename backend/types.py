"""What crosses the seams of H3 Studio: a request, its media, and the order a worker receives.

Stdlib only, frozen, and ignorant of every other module.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import NewType

JobId = NewType("JobId", str)

FPS = 24  # fixed by the model: h3-facts 1, diffusers MINIMAX_H3_FPS
AUDIO_SAMPLE_RATE = 32_000  # Hz, audio_vae/config.json sampling_rate
AUDIO_CHANNELS = 2

VIDEO_NAME, SIDECAR_NAME = "video.mp4", "video.json"  # in Render.folder; together they are a result
LAST_FRAME_NAME = "last_frame.png"  # beside them where EncoderSettings asks for it
# In Render.folder while a job runs, and never a result: the newest small picture, and what of the video is encoded.
PREVIEW_NAME, STREAM_NAME = "preview.png", "stream.mp4"
LIVE_NAMES = (PREVIEW_NAME, STREAM_NAME)


class Task(StrEnum):
    """What the model is asked to do; derived from a request, never chosen."""

    T2VA = "t2va"
    FL2VA = "fl2va"
    REF2VA = "ref2va"


class Stage(StrEnum):
    """The stages of one job, in order."""

    PREPARE = "prepare"  # media decoded in a sandbox
    LOAD = "load"  # processes started, weights read
    ENCODE = "encode"  # prompt and conditions
    DENOISE = "denoise"
    DECODE = "decode"  # video and audio VAE, frames going to the encoder
    MUX = "mux"  # MP4 closed, sidecar written


class ReferenceKind(StrEnum):
    """Modality of a reference, in the order the tags are named in the prompt."""

    IMAGE = "image"
    VIDEO = "video"
    AUDIO = "audio"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """One reference of `ref2va`. Its place in the request numbers its tag and moves the rotary clock.

    `kind` may be left out by a caller; `Backend` fills it in from the file's content. `start_s` and `length_s` trim a
    video or audio clip (`length_s=None` means to its end).
    """

    path: Path
    kind: ReferenceKind | None = None
    start_s: float = 0.0
    length_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """A LoRA file and the strength it is applied with."""

    path: Path
    scale: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the video is sampled.

    `width` and `height` in px, both or neither; left out, the canvas comes from `ratio` ("16:9"), else from the first
    keyframe, else 16:9. `num_inference_steps` counts sigma points: 50 means 49 forwards. `seed=None` draws one at
    submit; the drawn seed is recorded. Shifts left out come from the checkpoint's scheduler configs.
    """

    num_frames: int = 124
    width: int | None = None
    height: int | None = None
    ratio: str | None = None
    num_inference_steps: int = 50
    seed: int | None = None
    flow_shift: float | None = None
    audio_flow_shift: float | None = None
    adapters: tuple[Adapter, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """Everything a user asks for. Media are paths; the task follows from what is present."""

    prompt: str
    first_frame: Path | None = None
    last_frame: Path | None = None
    references: tuple[Reference, ...] = ()
    sampling: Sampling = field(default_factory=Sampling)

    @property
    def task(self) -> Task:
        """`ref2va` with references, `fl2va` with a keyframe, else `t2va`."""
        if self.references:
            return Task.REF2VA
        if self.first_frame is not None or self.last_frame is not None:
            return Task.FL2VA
        return Task.T2VA

    def with_steps(self, num_inference_steps: int) -> GenerationRequest:
        """The same request with another number of sigma points."""
        return replace(self, sampling=replace(self.sampling, num_inference_steps=num_inference_steps))

    def with_media_beside(self, folder: Path) -> GenerationRequest:
        """The same request with relative media paths taken from `folder`; absolute ones stay."""
        return replace(
            self,
            first_frame=folder / self.first_frame if self.first_frame is not None else None,
            last_frame=folder / self.last_frame if self.last_frame is not None else None,
            references=tuple(replace(item, path=folder / item.path) for item in self.references),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """Canvas rules of a checkpoint, as its `modular_model_index.json` states them (px).

    The defaults are the released model's: `canvas_short_edge`, `canvas_max_pixels` and `reference_image_short_edge`
    of diffusers' MiniMax-H3 blocks.
    """

    canvas_short_edge: int = 768
    canvas_max_pixels: int = 768 * 1344
    reference_image_short_edge: int = 2048
    canvas_multiple: int = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaReport:
    """What a file is and what was done to it, in words a user can read and figures a script can check.

    `kind` is what the content is. Absent figures are None. `actions` are past-tense sentences such as
    "rotated 90 degrees clockwise as the EXIF orientation asks".
    """

    name: str
    kind: ReferenceKind
    container: str  # "JPEG", "MP4", "WAV"
    codec: str | None = None
    width: int | None = None  # px, as displayed (rotation and pixel aspect applied)
    height: int | None = None
    duration_s: float | None = None
    fps: float | None = None
    num_frames: int | None = None  # frames handed to the model, at 24 fps
    audio_codec: str | None = None
    audio_sample_rate: int | None = None  # of the source, Hz
    audio_channels: int | None = None
    audio_duration_s: float | None = None
    used_start_s: float | None = None  # the part that is used, after trimming
    used_length_s: float | None = None
    prepared_width: int | None = None
    prepared_height: int | None = None
    actions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Glimpse:
    """A file at a glance, for people.

    poster: JPEG of a picture or of one frame. strip: JPEG of a clip's frames side by side, evenly over its length.
    peaks: the largest absolute sample, 0 to 1, in each equal part of a sound or of a clip's length.
    """

    poster: Path | None = None
    strip: Path | None = None
    peaks: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedReference:
    """A reference ready for the model.

    image: PNG, RGB8, upright. frames: `.npy` uint8 (num_frames, height, width, 3) at 24 fps on the canvas of the
    video's own aspect. audio: `.npy` float32 (2, samples) at 32 kHz; a video's soundtrack or an audio reference.
    """

    kind: ReferenceKind
    image: Path | None = None
    frames: Path | None = None
    audio: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedMedia:
    """All media of a request, prepared. Keyframes are PNG, RGB8, already on the canvas of the request."""

    first_frame: Path | None = None
    last_frame: Path | None = None
    references: tuple[PreparedReference, ...] = ()
    reports: tuple[MediaReport, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderSettings:
    """How the MP4 is encoded; a part of the quality preset."""

    crf: int = 17  # x264 constant rate factor, 0 lossless to 51
    x264_preset: str = "fast"
    audio_bitrate_kbps: int = 192
    save_last_frame: bool = False  # also write last_frame.png
    save_wav: bool = False  # also write audio.wav
    stream: bool = True  # also write the growing file that is watched while the rest decodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Render:
    """The order an engine receives: a resolved request (canvas and seed concrete), its media, where results go.

    `folder` is the job's output folder: `video.mp4` and what `encoder` asks for are written there, atomically.
    `tensors` names a safetensors file to write `latents`, `audio_latents` and `audio` to as well. `quality` is the name
    of the quality preset, `names` what people call the media, by file name: both only for the record.
    """

    job: JobId
    request: GenerationRequest
    media: PreparedMedia
    folder: Path
    encoder: EncoderSettings = field(default_factory=EncoderSettings)
    tensors: Path | None = None
    quality: str = ""
    names: dict[str, str] = field(default_factory=dict)
