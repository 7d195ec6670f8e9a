"""Pictures for the model: any of the allowed formats to upright 8-bit sRGB, and keyframes onto their canvas.

Knows pixels and Pillow. Rules about requests live in `backend.limits`; this runs inside the sandbox.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pillow_heif
from PIL import Image, ImageCms

from backend.limits import MAX_RATIO, MIN_RATIO
from backend.media.source import Source
from backend.types import MediaReport, ReferenceKind

MAX_PIXELS = 40_000_000  # cases.md: cap about 40 megapixels, read from the header
MAX_BYTES = 30 * 2**20  # model README
MIN_SIDE, MAX_SIDE = 256, 5760  # of a reference, model README
REFERENCE_RATIOS = (0.4, 2.5)  # model README
GROUND = (128, 128, 128)  # behind transparency: keeps white and black cut-outs visible alike
_ORIENTATION_TAG = 0x0112
_DEEP_GREY = ("I;16", "I;16B", "I;16L", "I;16N", "I")
_T = Image.Transpose
# EXIF 2.3 orientation: what undoes it, and how people call that
_UPRIGHT: dict[int, tuple[Image.Transpose, str]] = {
    2: (_T.FLIP_LEFT_RIGHT, "mirrored left to right"),
    3: (_T.ROTATE_180, "rotated 180 degrees"),
    4: (_T.FLIP_TOP_BOTTOM, "mirrored top to bottom"),
    5: (_T.TRANSPOSE, "mirrored and rotated 90 degrees counterclockwise"),
    6: (_T.ROTATE_270, "rotated 90 degrees clockwise"),
    7: (_T.TRANSVERSE, "mirrored and rotated 90 degrees clockwise"),
    8: (_T.ROTATE_90, "rotated 90 degrees counterclockwise"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """An upright RGB image and what was done to get there."""

    image: Image.Image
    report: MediaReport


def read_header(source: Source, *, keyframe: bool) -> tuple[Image.Image, MediaReport]:
    """Open without decoding and apply every rule; raises MediaRefused. The report has the size as displayed."""
    pillow_heif.register_heif_opener()
    Image.MAX_IMAGE_PIXELS = None  # our own cap, on the header, names the file and the way out
    if source.size_bytes > MAX_BYTES:
        has = f"{source.size_bytes / 2**20:.1f} MiB"
        raise source.refuse(has, f"a picture may have at most {MAX_BYTES // 2**20} MiB", "save it smaller")
    try:
        image = Image.open(source.file, formats=[source.format.reader])
    except (OSError, ValueError, SyntaxError) as error:
        raise _damaged(source, error) from error
    width, height = image.size
    if width * height > MAX_PIXELS:
        rule = f"a picture may have at most {MAX_PIXELS // 10**6} megapixels"
        raise source.refuse(f"{width}x{height}, {width * height / 1e6:.0f} megapixels", rule, "scale it down")
    depth = _depth(image)
    if _orientation(image) >= 5:
        width, height = height, width
    _check_size(source, width, height, keyframe)
    report = MediaReport(
        name=source.name,
        kind=ReferenceKind.IMAGE,
        container=source.format.title,
        codec=image.mode,
        width=width,
        height=height,
        actions=(f"scaled from {depth} to 8 bits",) if depth > 8 else (),
    )
    return image, report


def read(source: Source, *, keyframe: bool) -> Picture:
    """Decode to upright 8-bit sRGB; raises MediaRefused where the rules or the data say no."""
    image, report = read_header(source, keyframe=keyframe)
    actions: list[str] = []  # after those of the header
    warnings: list[str] = []
    frames = getattr(image, "n_frames", 1)
    if frames > 1 and image.format != "MPO":  # the further pictures of an MPO are thumbnails or depth
        actions.append(f"took the first of {frames} frames of the animation")
    orientation = _orientation(image)
    try:
        image.seek(0)
        image.load()
        upright = _to_srgb(image, actions, warnings)
    except (OSError, ValueError, SyntaxError, EOFError) as error:
        raise _damaged(source, error) from error
    if orientation in _UPRIGHT:
        method, words = _UPRIGHT[orientation]
        upright = upright.transpose(method)
        actions.append(f"{words} as its EXIF orientation asks")
    prepared = _with(report, upright, actions, warnings)
    return Picture(image=upright, report=prepared)


def onto_canvas(picture: Picture, width: int, height: int, *, cover: bool) -> Picture:
    """A keyframe on the canvas of its request, by diffusers' arithmetic (`MiniMaxH3ResizeStep`).

    The geometry anchor is stretched; a follower (`cover`) is scaled to cover and cropped. On size already: untouched.
    """
    image = picture.image
    if image.size == (width, height):
        return picture
    if cover:
        scale = max(width / image.width, height / image.height)
        size = (max(width, round(image.width * scale)), max(height, round(image.height * scale)))
        left, top = max(0, (size[0] - width) // 2), max(0, (size[1] - height) // 2)
        placed = image.resize(size, Image.Resampling.LANCZOS).crop((left, top, left + width, top + height))
        done = f"scaled to {size[0]}x{size[1]} and cropped to {width}x{height}"
    else:
        placed = image.resize((width, height), Image.Resampling.LANCZOS)
        done = f"stretched from {image.width}x{image.height} to {width}x{height}"
    return Picture(image=placed, report=_with(picture.report, placed, [done], []))


def _check_size(source: Source, width: int, height: int, keyframe: bool) -> None:
    has, ratio = f"{width}x{height}", width / max(1, height)
    if keyframe:
        if not MIN_RATIO <= ratio <= MAX_RATIO:
            raise source.refuse(has, "a keyframe must be between 1:4 and 4:1", "crop it")
        return
    if min(width, height) < MIN_SIDE or max(width, height) > MAX_SIDE:
        way_out = "use a larger picture" if min(width, height) < MIN_SIDE else "scale it down"
        raise source.refuse(has, f"sides of a reference picture must be {MIN_SIDE} to {MAX_SIDE} px", way_out)
    low, high = REFERENCE_RATIOS
    if not low <= ratio <= high:
        rule = f"width / height of a reference picture must be {low} to {high}"
        raise source.refuse(f"{has}, ratio {ratio:.2f}", rule, "crop it")


def _orientation(image: Image.Image) -> int:
    """1 to 8: how the pixels lie. What EXIF does not define is 1, so that size, report and pixels always agree."""
    if image.format == "HEIF":
        return 1  # libheif has turned it already
    try:
        value = image.getexif().get(_ORIENTATION_TAG, 1)
        return int(value) if value in _UPRIGHT else 1
    except (OSError, ValueError, SyntaxError, TypeError, KeyError):
        return 1  # damaged EXIF: the pixels are what there is


def _depth(image: Image.Image) -> int:
    """Bits a channel in the file; asked before EXIF or pixels are read, which hides it."""
    if image.mode in _DEEP_GREY or any("16" in str(tile.args) for tile in getattr(image, "tile", ())):
        return 16
    return int(image.info.get("bit_depth", 8))  # of HEIC


def _to_srgb(image: Image.Image, actions: list[str], warnings: list[str]) -> Image.Image:
    """Any mode to RGB: depth first, then transparency, then colour, so that no step sees what it cannot handle."""
    if image.mode in _DEEP_GREY:
        return _over_ground(_grey_from_16(image), actions).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        colours = _convert_profile(
            image.convert("RGB") if image.mode != "RGBA" else rgba.convert("RGB"), image, actions
        )
        colours.putalpha(rgba.getchannel("A"))
        return _over_ground(colours, actions).convert("RGB")
    return _convert_profile(image, image, actions, warnings)


def _grey_from_16(image: Image.Image) -> Image.Image:
    values = np.asarray(image).astype(np.uint32)
    grey = Image.fromarray(((values + 128) // 257).astype(np.uint8))  # 65535 / 255 = 257
    clear = image.info.get("transparency")
    if isinstance(clear, int):
        grey.putalpha(Image.fromarray(np.where(values == clear, 0, 255).astype(np.uint8)))
    return grey


def _over_ground(image: Image.Image, actions: list[str]) -> Image.Image:
    if "A" not in image.getbands() or image.getchannel("A").getextrema()[0] == 255:
        return image.convert("RGB")
    actions.append("put over a neutral grey ground where it was transparent")
    rgba = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", rgba.size, (*GROUND, 255)), rgba)


def _convert_profile(
    image: Image.Image, original: Image.Image, actions: list[str], warnings: list[str] | None = None
) -> Image.Image:
    """`image` as sRGB by the ICC profile of `original`; untouched where the profile is sRGB itself."""
    profile = original.info.get("icc_profile")
    if not profile:
        if image.mode == "CMYK":
            actions.append("converted from CMYK without a profile")
        return image.convert("RGB")
    mode = image.mode if image.mode in ("RGB", "CMYK", "L", "LAB") else "RGB"
    try:
        transform = ImageCms.buildTransform(
            ImageCms.ImageCmsProfile(io.BytesIO(profile)),
            ImageCms.createProfile("sRGB"),
            mode,
            "RGB",
            renderingIntent=ImageCms.Intent.RELATIVE_COLORIMETRIC,
            flags=ImageCms.Flags.BLACKPOINTCOMPENSATION,
        )
    except (ImageCms.PyCMSError, OSError, ValueError):
        if warnings is not None:
            warnings.append("its colour profile does not fit and was ignored")
        return image.convert("RGB")
    if mode == "RGB" and _changes_little(transform.apply):
        return image.convert("RGB")
    actions.append("converted to sRGB by its colour profile")
    return transform.apply(image if image.mode == mode else image.convert(mode))


def _changes_little(apply: Callable[[Image.Image], Image.Image]) -> bool:
    """True where a transform moves no colour of a grid by more than rounding: an sRGB profile in all but name."""
    steps = np.linspace(0, 255, 9).astype(np.uint8)
    grid = np.stack(np.meshgrid(steps, steps, steps), axis=-1).reshape(27, 27, 3)
    moved = np.asarray(apply(Image.fromarray(grid))).astype(int) - grid
    return bool(np.abs(moved).max() <= 2)


def _with(report: MediaReport, image: Image.Image, actions: list[str], warnings: list[str]) -> MediaReport:
    return replace(
        report,
        prepared_width=image.width,
        prepared_height=image.height,
        actions=(*report.actions, *actions),
        warnings=(*report.warnings, *warnings),
    )


def _damaged(source: Source, error: Exception) -> Exception:
    has = f"{source.format.title}, {error}".rstrip(".")
    return source.refuse(has, "must be a complete picture", "save or upload it again")
