import torch

from backend.runtime.preview import LinearPreview, Previewer
from bench import models

CPU = torch.device("cpu")


def test_the_fit_finds_the_map_of_a_linear_decoder():
    class Linear(torch.nn.Module):
        def forward(self, latents):  # (n, 24, t, h, w) -> (n, 3, t, h, w)
            return torch.einsum("rc,ncthw->nrthw", self.matrix, latents) + 0.1

    vae = models.vae(CPU, torch.float32, tiny=True)
    vae.post_quant_conv = torch.nn.Conv3d(24, 24, 1)
    vae.post_quant_conv.weight.data = torch.eye(24)[:, :, None, None, None]
    vae.post_quant_conv.bias.data.zero_()
    vae.decoder = Linear()
    vae.decoder.matrix = torch.randn(3, 24) * 0.05
    preview = LinearPreview.fit(vae)
    std = torch.tensor((0.229, 0.224, 0.225))
    mean = torch.tensor((0.485, 0.456, 0.406))
    assert torch.allclose(preview.matrix, vae.decoder.matrix * std[:, None], atol=1e-6)
    assert torch.allclose(preview.bias, 0.1 * std + mean, atol=1e-6)


def test_the_picture_shows_the_middle_frame():
    preview = LinearPreview(torch.zeros(3, 24), torch.tensor([0.0, 0.5, 1.0]))
    preview.matrix[0, 7] = 1.0
    latents = torch.zeros(1, 24, 5, 6, 10)
    latents[0, 7, 2] = 1.0
    picture = preview.picture(latents)
    assert picture.shape == (24, 40, 3) and picture.dtype == torch.uint8
    assert torch.equal(picture[0, 0], torch.tensor([255, 128, 255], dtype=torch.uint8))
    latents[0, 7, 2] = -1.0
    assert preview.picture(latents)[0, 0, 0] == 0


class Clock:
    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr("backend.runtime.preview.time.perf_counter", lambda: self.now)


def previewer(clock, every=1, cost_s=0.0):
    shown, said = [], []

    def show(step, picture):
        clock.now += cost_s
        shown.append((step, tuple(picture.shape)))

    made = Previewer(every, show, said.append)
    return made, shown, said


def steps(made, clock, count, step_s):
    for step in range(1, count + 1):
        clock.now += step_s
        made(step, lambda: torch.zeros(1, 24, 5, 6, 10))


def test_every_second_step_is_shown(monkeypatch):
    made, shown, _ = previewer(clock := Clock(monkeypatch), every=2)
    made._linear = LinearPreview(torch.zeros(3, 24), torch.zeros(3))
    steps(made, clock, 6, 1.0)
    assert shown == [(2, (24, 40, 3)), (4, (24, 40, 3)), (6, (24, 40, 3))]


def test_pictures_take_a_hundredth_of_the_time_at_most(monkeypatch):
    made, shown, _ = previewer(clock := Clock(monkeypatch), cost_s=0.02)
    made._linear = LinearPreview(torch.zeros(3, 24), torch.zeros(3))
    steps(made, clock, 100, 0.1)
    assert [step for step, _ in shown] == [1, 21, 41, 61, 81]  # 0.02 s every 2 s


def test_without_colours_nothing_is_shown_and_it_is_said(monkeypatch):
    made, shown, said = previewer(clock := Clock(monkeypatch))
    steps(made, clock, 3, 1.0)
    assert not shown and "waits in host memory" in said[0]  # Runtime passes a sentence on once
