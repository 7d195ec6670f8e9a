import torch

from backend.runtime.preview import LinearPreview
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
