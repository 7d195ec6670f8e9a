"""From a draft to the final: the canvas the draft was a copy of, for every shape, and the same prompt and seed."""

import pytest

from backend import limits, presets
from backend.errors import JobNotFound
from backend.jobs.finals import final_request
from backend.jobs.planning import scaled
from backend.types import GenerationRequest, Geometry, Sampling
from tests.job_fakes import World, open_backend, wait_until

DRAFT = presets.quality_presets()["draft"]
RELEASED = Geometry()
# What diffusers' resolve_canvas_size gives for these ratios on the released model (h3-facts 2)
FULL = {"21:9": (1536, 672), "16:9": (1344, 768), "4:3": (1024, 768), "1:1": (768, 768), "9:16": (768, 1344)}


def drafted(width: int, height: int) -> GenerationRequest:
    return GenerationRequest(
        prompt="a boat", sampling=Sampling(width=width, height=height, num_inference_steps=12, seed=77)
    )


@pytest.mark.parametrize("ratio", FULL)
def test_a_draft_of_a_named_shape_becomes_that_shape_in_full(ratio):
    small = limits.canvas_for_ratio(*limits.RATIOS[ratio], scaled(RELEASED, DRAFT))
    final = final_request(drafted(*small), RELEASED, DRAFT, 50, None)
    assert limits.canvas_of(final.sampling, RELEASED, None) == FULL[ratio]
    assert (final.sampling.seed, final.prompt, final.sampling.num_inference_steps) == (77, "a boat", 50)


def test_a_draft_that_followed_its_first_frame_still_does():
    frame = (1000, 1500)
    small = limits.canvas_for_ratio(*frame, scaled(RELEASED, DRAFT))
    final = final_request(drafted(*small), RELEASED, DRAFT, 50, frame)
    assert final.sampling.ratio is None and final.sampling.width is None
    assert limits.canvas_of(final.sampling, RELEASED, frame) == (768, 1152)


def test_a_canvas_given_in_numbers_is_kept():
    final = final_request(drafted(800, 448), RELEASED, DRAFT, 50, None)
    assert (final.sampling.width, final.sampling.height) == (800, 448)
    assert final.sampling.num_inference_steps == 50


def test_the_backend_submits_the_final_for_its_owner_only(tmp_path):
    backend = open_backend(tmp_path, World())
    try:
        request = GenerationRequest(prompt="a boat", sampling=Sampling(num_frames=107, seed=5, num_inference_steps=4))
        job = backend.submit(request, owner="session:a", quality="draft")
        wait_until(lambda: backend.job(job, owner="session:a").state.ended)
        with pytest.raises(JobNotFound):
            backend.final(job, owner="session:b")
        final = backend.job(backend.final(job, owner="session:a"), owner="session:a")
        small = backend.job(job, owner="session:a").request.sampling
        assert (small.width, small.height) == (128, 64)
        assert (final.request.sampling.width, final.request.sampling.height) == (224, 128)
        assert (final.quality, final.request.sampling.seed, final.request.prompt) == ("standard", 5, "a boat")
    finally:
        backend.close()
