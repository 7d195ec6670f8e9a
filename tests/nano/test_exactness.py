"""Everything re-expressed for training against diffusers' and transformers' own code, with random weights."""

import numpy as np
import pytest
import torch
from diffusers.modular_pipelines.minimax_h3.before_denoise import (
    MiniMaxH3PrepareLayoutStep,
    MiniMaxH3SetTimestepsStep,
    patchify_video_latents,
)
from diffusers.modular_pipelines.minimax_h3.encoders import MiniMaxH3Ref2VATextEncoderStep
from diffusers.schedulers import MiniMaxH3Scheduler
from PIL import Image

from bench.nano import architecture, conditioner, fast_encoder, packing, train_video_vae

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def vae():
    torch.manual_seed(0)
    return architecture.video_vae().eval().requires_grad_(False)


@pytest.fixture(scope="module")
def transformer():
    torch.manual_seed(1)
    model = architecture.transformer().eval().requires_grad_(False)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.normal_(0, 0.05)  # fresh heads are 0 and would prove nothing
    return model


@pytest.fixture(scope="module")
def presenter(tmp_path_factory):
    return conditioner.Presenter(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def text_encoder():
    return conditioner.build()


def test_a_window_encodes_and_decodes_as_the_class_does(vae):
    pixels = torch.randn(1, 3, train_video_vae.WINDOW, 64, 96)
    mean, _ = train_video_vae.encode_window(vae, pixels)
    # float32 in another order of summation
    torch.testing.assert_close(mean, vae._encode(pixels).chunk(2, dim=1)[0], atol=5e-6, rtol=1e-5)
    torch.testing.assert_close(train_video_vae.decode_window(vae, mean), vae._decode(mean), atol=0, rtol=0)


@pytest.mark.parametrize("frames", [17, 5])
def test_the_training_encoder_has_the_classes_gradients(frames):
    torch.manual_seed(2)
    encoder = architecture.video_vae().encoder.double()
    pixels = torch.randn(1, 3, frames, 32, 48, dtype=torch.float64)
    stock = encoder(pixels)
    ours = fast_encoder.encode(encoder, pixels)
    torch.testing.assert_close(ours, stock, atol=1e-12, rtol=1e-10)
    direction = torch.randn_like(stock)
    for one, other in zip(
        torch.autograd.grad(ours, list(encoder.parameters()), direction),
        torch.autograd.grad(stock, list(encoder.parameters()), direction),
        strict=True,
    ):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-8)


def test_a_single_frame_encodes_as_the_first_latent_of_its_clip(vae):
    pixels = torch.randn(1, 3, 17, 64, 96)
    whole, _ = train_video_vae.encode_window(vae, torch.cat((pixels, pixels[:, :, :5]), 2))
    alone = vae._encode(pixels[:, :, :1]).chunk(2, dim=1)[0]
    torch.testing.assert_close(whole[:, :, :1], alone, atol=5e-6, rtol=1e-5)


@pytest.mark.parametrize("anchors", [(), ("first",), ("first", "last")])
def test_velocity_is_the_stock_forward_clip_by_clip(transformer, anchors):
    tags, shape = (1,) * 9 + (0,) * 6 + (1,) * 5, packing._shape((96, 64), 39)
    plan = packing.keyframe_plan(transformer.rope, tags, (96, 64), 39, anchors, CPU)
    rows = torch.randn(2, len(plan.video), 96), torch.randn(2, len(plan.audio), 32), torch.randn(2, 20, 64)
    times = packing.clip_times(torch.tensor([0.9, 0.3]))
    flows = packing.velocity(transformer, plan, rows, times)

    packed = MiniMaxH3PrepareLayoutStep.build_packed_sequence(
        torch.tensor(tags), *shape, packing.PATCH_SIZE, 2, 2, 0, anchors
    )
    positions, tag_rows, video, audio, text, seen, heard = packed
    for clip in range(2):
        times_of = [float(value) for value in times[clip]]
        steps = MiniMaxH3SetTimestepsStep.build_row_timesteps(
            video, audio, seen, heard, 20, times_of[0], times_of[1], times_of[2], times_of[3]
        )
        stock = transformer(
            rows[0][clip : clip + 1], rows[1][clip : clip + 1], rows[2][clip : clip + 1],
            *steps, tag_rows, positions, video, audio, text,
        )  # fmt: skip
        torch.testing.assert_close(flows[0][clip], stock.sample[0], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(flows[1][clip], stock.audio_sample[0], atol=1e-5, rtol=1e-4)


def test_rows_are_patchified_latents():
    latents = torch.randn(1, 24, 3, 4, 6)
    rows = packing.pack_video(latents)
    torch.testing.assert_close(rows[0], patchify_video_latents(latents, packing.PATCH_SIZE), atol=0, rtol=0)
    torch.testing.assert_close(packing.unpack_video(rows, 3, 4, 6), latents, atol=0, rtol=0)
    sounds = torch.randn(2, 2, 32, 5)
    torch.testing.assert_close(packing.unpack_audio(packing.pack_audio(sounds)), sounds, atol=0, rtol=0)


@pytest.mark.parametrize("shift", [12.0, 3.0])
def test_sigmas_are_the_schedulers(shift):
    scheduler = MiniMaxH3Scheduler(shift=shift)
    scheduler.set_timesteps(12)
    torch.testing.assert_close(packing.shifted(torch.linspace(1, 0, 12), shift), scheduler.sigmas)


def test_patches_are_the_processors(tmp_path):
    from transformers import AutoProcessor

    conditioner.write_processor(tmp_path)
    processor = AutoProcessor.from_pretrained(tmp_path)
    pixels = torch.randint(0, 256, (6, 128, 224, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    image = processor.image_processor(images=[Image.fromarray(pixels[0].numpy())], return_tensors="pt")
    rows, grid = conditioner.patches(pixels[:1].expand(2, -1, -1, -1)[None])
    assert image["image_grid_thw"].tolist() == grid.tolist()
    torch.testing.assert_close(image["pixel_values"], rows, atol=1e-6, rtol=0)
    video = processor.video_processor(videos=[pixels.numpy()], do_sample_frames=False, return_tensors="pt")
    rows, grid = conditioner.patches(pixels.unflatten(0, (-1, 2)))
    assert video["video_grid_thw"].tolist() == grid.tolist()
    torch.testing.assert_close(video["pixel_values_videos"], rows, atol=1e-6, rtol=0)


def test_presentations_are_diffusers(presenter):
    from diffusers.modular_pipelines.minimax_h3.references import (
        MiniMaxH3AudioReference,
        MiniMaxH3ImageReference,
        MiniMaxH3VideoReference,
    )

    frames = np.zeros((56, 8, 8, 3), np.uint8)
    sound = torch.zeros(2, 8)
    references = [
        MiniMaxH3ImageReference(image=Image.new("RGB", (8, 8))),
        MiniMaxH3VideoReference(frames=frames, audio=sound),
        MiniMaxH3AudioReference(audio=sound),
    ]
    sampled, stamps = MiniMaxH3Ref2VATextEncoderStep._sample_video_condition_frames(frames, 24.0, 2.0, 2)
    ids, tags = MiniMaxH3Ref2VATextEncoderStep._build_presentation(
        presenter._tokenizer, "A star moves like <Video 1>.", references, [16], [28], [stamps]
    )
    ours = presenter.references(
        "A star moves like <Video 1>.", ("image", "video+audio", "audio"), 16, 56, video_patches=28
    )
    assert list(ours.ids) == ids
    assert list(ours.tags) == tags
    assert len(conditioner.sampled_frames(56)) == len(sampled) + len(sampled) % 2


def test_a_batch_of_presentations_embeds_as_each_alone(presenter, text_encoder):
    shown = presenter.keyframes("A large red star slides left.", 1, 6)
    ids = torch.tensor([shown.ids] * 2)
    images = torch.randint(0, 256, (2, 1, 64, 96, 3), dtype=torch.uint8)
    together = conditioner.embed(text_encoder, ids, images)
    alone = [conditioner.embed(text_encoder, ids[index : index + 1], images[index : index + 1]) for index in range(2)]
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-5, rtol=1e-4)


def test_hidden_state_50_keeps_tokens_and_some_context(presenter, text_encoder):
    first, second = (
        conditioner.embed(text_encoder, torch.tensor([presenter.keyframes(text, 0, 0).ids]))[0]
        for text in ("a red star moves left", "a blue star moves left")
    )
    own = float((first[1] - second[1]).pow(2).mean())
    carried = float((first[2:] - second[2:]).pow(2).mean())
    assert own > 0.5  # red is not blue
    assert 1e-4 < carried < own / 5  # the words after it know, but stay themselves


def test_every_prompt_encodes(presenter):
    text = "Ünïcode 漢字 🎈 and newlines\n\tare bytes"
    assert presenter._tokenizer.decode(presenter.text(text)) == text
    words = presenter.text("A large red striped star slides from left to right against a navy gradient.")
    assert len(words) <= 16  # a token a word, or prompts would not fit their rows
