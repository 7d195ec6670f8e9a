"""Sends an open file to the reader its content asks for: picture, video or sound, to look at it or to prepare it.

Runs inside the sandbox, where rights are limited already; knows orders and files, no requests.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np

from backend.media import audio, containers, glimpse, images, sniff, videos
from backend.media.sandbox import Answer, Order, Role, outputs
from backend.media.source import IMAGE_FORMATS, Source, open_source
from backend.types import FPS


def carry_out(order: Order, fd: int) -> Answer:
    """Read the open file `fd` as `order` says; raises MediaRefused."""
    source = open_source(order.field, order.name, fd)
    _check_part(order, source)
    if source.format.family is sniff.Family.PICTURE:
        return _picture(order, source)
    with containers.opened(source) as opened:
        if order.role is Role.FIRST_FRAME:
            seen = "save one of its frames as a picture, or " if opened.video is not None else ""
            rule = f"a keyframe must be a picture ({IMAGE_FORMATS})"
            raise source.refuse(source.format.title, rule, f"{seen}use it as a reference")
        if opened.video is None and opened.audio is None:
            has = f"{source.format.title} without picture or sound"
            raise source.refuse(has, "must be a complete file of its format", "export or upload it again")
        return _video(order, source, opened) if opened.video is not None else _sound(order, source, opened)


def _check_part(order: Order, source: Source) -> None:
    """MediaRefused for a start and a length that are no part of anything, or of a picture."""
    for name, value in (("start", order.start_s), ("length", order.length_s)):
        if value is None:
            continue
        if not math.isfinite(value) or value < 0:
            raise source.refuse(f"{name} {value:g}", f"{name} must be seconds, 0 or more", f"choose another {name}")
    if order.length_s == 0:
        raise source.refuse("length 0", "length must be more than 0 seconds", "choose a longer part, or leave it out")
    if source.format.family is sniff.Family.PICTURE and (order.start_s or order.length_s is not None):
        raise source.refuse(source.format.title, "a picture has no start and no length", "leave them out")


def _picture(order: Order, source: Source) -> Answer:
    keyframe = order.role is Role.FIRST_FRAME
    if order.stem is None:
        return Answer(report=images.read_header(source, keyframe=keyframe)[1])
    picture = images.read(source, keyframe=keyframe)
    if order.glimpse:
        return Answer(report=picture.report, glimpse=glimpse.of_picture(order, picture))
    if keyframe and order.width is not None and order.height is not None:
        picture = images.onto_canvas(picture, order.width, order.height, cover=order.cover)
    image = outputs(order.stem)[0]
    picture.image.save(image, format="PNG", compress_level=1)
    return Answer(report=picture.report, image=image)


def _video(order: Order, source: Source, opened: containers.Opened) -> Answer:
    if opened.audio is not None:
        audio.check_stream(source, opened.audio)
    facts, report = videos.probe(source, opened)
    size = videos.canvas(source, facts, order.geometry)
    if order.glimpse:
        report, seen = glimpse.of_video(order, source, opened, facts, report)
        return Answer(report=report, glimpse=seen)
    if order.stem is None:
        return Answer(report=report)
    start, length = _part(order, source, facts.duration)
    used = videos.check_length(source, facts, start, length)
    _, frames_file, audio_file = outputs(order.stem)
    count = videos.write_frames(source, opened, facts, (start, used), videos.Target(frames_file, size))
    sound = audio.soundtrack(source, opened, facts.start + start, Fraction(count, FPS))
    if sound is not None:
        np.save(audio_file, sound.samples)
    actions = [*report.actions]
    if abs(facts.timing.rate - FPS) > 0.001:
        how = "" if facts.timing.constant_rate else "variable, about "
        actions.append(f"resampled from {how}{facts.timing.rate:.3f} to {FPS} frames a second")
    if (report.width, report.height) != size:
        actions.append(f"scaled from {report.width}x{report.height} to {size[0]}x{size[1]}")
    report = replace(
        report,
        num_frames=count,
        used_start_s=float(start),
        used_length_s=round(float(used), 4),
        prepared_width=size[0],
        prepared_height=size[1],
        actions=(*actions, *_trimmed(order, facts.duration, used), *(sound.actions if sound else ())),
        warnings=(*report.warnings, *(sound.warnings if sound else ())),
    )
    return Answer(report=report, frames=frames_file, audio=audio_file if sound is not None else None)


def _sound(order: Order, source: Source, opened: containers.Opened) -> Answer:
    report = audio.probe(source, opened)
    if order.glimpse:
        return Answer(report=report, glimpse=glimpse.of_sound(source, opened, report))
    if order.stem is None:
        return Answer(report=report)
    duration = Fraction(report.duration_s or 0)
    start, length = _part(order, source, duration)
    sound = audio.read(source, opened, start, length)
    audio_file = outputs(order.stem)[2]
    np.save(audio_file, sound.samples)
    used = Fraction(sound.samples.shape[1], audio.AUDIO_SAMPLE_RATE)
    report = replace(
        report,
        used_start_s=float(start),
        used_length_s=round(float(used), 4),
        actions=(*report.actions, *_trimmed(order, duration, used), *sound.actions),
        warnings=(*report.warnings, *sound.warnings),
    )
    return Answer(report=report, audio=audio_file)


def _part(order: Order, source: Source, duration: Fraction) -> tuple[Fraction, Fraction | None]:
    """Start and length (s) of the part to use; raises MediaRefused where it lies outside the clip."""
    start = Fraction(order.start_s).limit_denominator(1_000_000)
    length = None if order.length_s is None else Fraction(order.length_s).limit_denominator(1_000_000)
    if start >= duration:
        has = f"start {float(start):g} s of {float(duration):.2f} s"
        raise source.refuse(has, "the part to use must lie inside the clip", "choose an earlier start")
    return start, length


def _trimmed(order: Order, duration: Fraction, used: Fraction) -> tuple[str, ...]:
    if order.start_s == 0 and duration - used < Fraction(1, 100):
        return ()
    return (f"used {float(used):.2f} of {float(duration):.2f} s from {order.start_s:g} s",)
