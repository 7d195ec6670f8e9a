"""What a file is, told from its first bytes; names and extensions are not looked at.

Knows signatures of formats. Whether a format is allowed, and what lies inside, is for `images`, `videos` and `audio`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

HEAD_BYTES = 4096


class Family(StrEnum):
    """How a file is opened: as a picture by Pillow, as a container by FFmpeg, or not at all."""

    PICTURE = "picture"
    CONTAINER = "container"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Format:
    """A recognised format. `reader` is Pillow's or FFmpeg's name for it; only that reader is ever tried."""

    title: str
    family: Family
    reader: str = ""


JPEG = Format("JPEG", Family.PICTURE, "JPEG")
PNG = Format("PNG", Family.PICTURE, "PNG")
WEBP = Format("WebP", Family.PICTURE, "WEBP")
HEIC = Format("HEIC", Family.PICTURE, "HEIF")
GIF = Format("GIF", Family.PICTURE, "GIF")
MP4 = Format("MP4", Family.CONTAINER, "mov")
MOV = Format("MOV", Family.CONTAINER, "mov")
M4A = Format("M4A", Family.CONTAINER, "mov")
WAV = Format("WAV", Family.CONTAINER, "wav")
FLAC = Format("FLAC", Family.CONTAINER, "flac")
OGG = Format("OGG", Family.CONTAINER, "ogg")
MP3 = Format("MP3", Family.CONTAINER, "mp3")
AAC = Format("AAC", Family.CONTAINER, "aac")

_HEIF_BRANDS = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"}
_PREFIXES = (
    (b"\xff\xd8\xff", JPEG),
    (b"\x89PNG\r\n\x1a\n", PNG),
    (b"GIF87a", GIF),
    (b"GIF89a", GIF),
    (b"fLaC", FLAC),
    (b"OggS", OGG),
    (b"ID3", MP3),
    (b"\x1a\x45\xdf\xa3", Format("Matroska or WebM", Family.REFUSED)),
    (b"BM", Format("BMP", Family.REFUSED)),
    (b"II*\x00", Format("TIFF", Family.REFUSED)),
    (b"MM\x00*", Format("TIFF", Family.REFUSED)),
    (b"8BPS", Format("Photoshop", Family.REFUSED)),
    (b"%PDF", Format("PDF", Family.REFUSED)),
    (b"PK\x03\x04", Format("ZIP", Family.REFUSED)),
    (b"FLV", Format("Flash video", Family.REFUSED)),
    (b"FORM", Format("AIFF", Family.REFUSED)),
    (b"\x30\x26\xb2\x75", Format("Windows Media", Family.REFUSED)),
    (b"\x00\x00\x01\xba", Format("MPEG program stream", Family.REFUSED)),
)
_RIFF = {
    b"WEBP": WEBP,
    b"WAVE": WAV,
    b"AVI ": Format("AVI", Family.REFUSED),
}
_QUICKTIME_ATOMS = {b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot"}


def sniff(head: bytes) -> Format:
    """The format of a file that starts with `head` (up to `HEAD_BYTES`)."""
    if not head:
        return Format("empty", Family.REFUSED)
    for prefix, found in _PREFIXES:
        if head.startswith(prefix):
            return found
    if head[:4] in (b"RIFF", b"RF64", b"BW64"):
        return _RIFF.get(head[8:12], Format("RIFF", Family.REFUSED))
    if head[4:8] == b"ftyp":
        return _iso_brand(head)
    if head[4:8] in _QUICKTIME_ATOMS:
        return MOV
    if len(head) > 1 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0:
        layer = head[1] & 0x06  # two bits: 00 is ADTS, 01 layer III
        return {0x00: AAC, 0x02: MP3}.get(layer, Format("MPEG audio layer I or II", Family.REFUSED))
    return Format(_unknown(head), Family.REFUSED)


def _iso_brand(head: bytes) -> Format:
    brand = head[8:12]
    if brand in _HEIF_BRANDS:
        return HEIC
    if brand in (b"avif", b"avis"):
        return Format("AVIF", Family.REFUSED)
    if brand == b"qt  ":
        return MOV
    return M4A if brand in (b"M4A ", b"M4B ") else MP4


def _unknown(head: bytes) -> str:
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if b"<svg" in text[:1024]:
        return "SVG"
    if text.startswith((b"ffconcat", b"#extm3u", b"[playlist]")):
        return "a playlist"
    if b"\x00" not in head and all(byte >= 9 for byte in head):
        return "text"
    return "no known format"
