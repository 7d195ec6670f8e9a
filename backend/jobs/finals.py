"""From a draft to the real thing: the same prompt, media and seed, on the canvas the draft was a small copy of.

Pure: it knows canvas rules and qualities, and stores nothing.
"""

from __future__ import annotations

import dataclasses

from backend import limits
from backend.errors import InvalidRequest
from backend.jobs.planning import scaled
from backend.presets import QualityPreset
from backend.types import GenerationRequest, Geometry

FINAL_QUALITY = "standard"


def final_request(
    draft: GenerationRequest,
    geometry: Geometry,
    made_with: QualityPreset,
    steps: int,
    keyframe_size: tuple[int, int] | None,
) -> GenerationRequest:
    """`draft` (stored, so with its canvas and seed) as a request for the full canvas and `steps` sigma points.

    The shape is the one that gave the draft its canvas under `made_with`: the keyframe's own, 16:9 without one, or a
    named ratio. A canvas that was given in numbers is no scaled one and is kept.
    """
    canvas, small = (draft.sampling.width, draft.sampling.height), scaled(geometry, made_with)
    for ratio in (None, *limits.RATIOS):
        asked = dataclasses.replace(draft.sampling, width=None, height=None, ratio=ratio, num_inference_steps=steps)
        try:
            if limits.canvas_of(asked, small, keyframe_size) == canvas:
                return dataclasses.replace(draft, sampling=asked)
        except InvalidRequest:  # a keyframe narrower than any canvas: its draft had another shape
            continue
    return draft.with_steps(steps)
