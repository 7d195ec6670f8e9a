"""What the ranks compute in the tests of everything but the trunk: conditioner, tiles, and whole renders."""

from pathlib import Path

import numpy as np
import torch
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from backend.h3.pipeline import Pipeline
from backend.h3.seams import Stopped
from backend.presets import Device, Dtype, Parallel, RuntimeOptions
from backend.process.messages import Setup
from backend.runtime.conditioner import Conditioner, cut
from backend.runtime.load import put
from backend.runtime.parallel import conditioner
from backend.runtime.parallel.group import form
from backend.runtime.parallel.vae import TileShare
from backend.runtime.setup import Runtime
from backend.runtime.vae_tiles import TileDecoder
from bench.models import TINY_TEXT, TINY_VISION, on_meta, random_weights, vae

CPU = torch.device("cpu")
LAYER = 2


@torch.no_grad()
def encode(rank, size, encoders, options):
    """Embeddings of two prompts by the first `encoders` ranks, and how many weights this rank holds."""
    text = TINY_TEXT | {"num_attention_heads": 16, "num_key_value_heads": 8, "intermediate_size": 96}
    config = Qwen3VLConfig(text_config=text, vision_config=dict(TINY_VISION))
    model = on_meta(Qwen3VLForConditionalGeneration, config=config)
    cut(model, LAYER)
    dtype = getattr(torch, options.get("dtype", "float32"))
    groups = form(rank, size, Parallel(ulysses_degree=size, conditioner_tensor_parallel=encoders))
    if groups.conditioner is not None:
        random_weights(model, CPU, dtype)
        if options.get("cut_by_loader"):
            for name, each in list(model.named_parameters()):
                part = conditioner.cut(name, each.data, groups.conditioner.rank, groups.conditioner.size)
                put(model, name, part.clone())
    if size > 1:
        conditioner.share(model, LAYER, groups, dtype)
    assert model.dtype is dtype
    wrapped = Conditioner(model, LAYER, remember=True)
    results = []
    for tokens in ([3, 1, 4, 1, 5], [9, 2], [3, 1, 4, 1, 5]):
        ids = torch.tensor([tokens])
        out = model.model(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            mm_token_type_ids=torch.zeros_like(ids),
            use_cache=False,
            output_hidden_states=True,
        )
        results.append(out.hidden_states[LAYER].float().numpy())
    assert wrapped.encodings == 2
    layers = model.model.language_model.layers
    matrices = (each for name, each in layers.named_parameters() if name.endswith("proj.weight"))
    return results, sum(each.numel() for each in matrices if not each.is_meta)


@torch.no_grad()
def decode(rank, size, sizes):
    """Clips of some sizes in latents decoded by all ranks; rank 0's results, and tiles that each rank decoded."""
    model = vae(CPU, torch.float32, tiny=True)
    share = TileShare(form(rank, size, Parallel(ulysses_degree=size)).world) if size > 1 else None
    tiles = TileDecoder(3, lambda message: None, share)
    counted = []
    inner = model.decoder.forward
    model.decoder.forward = lambda z: counted.append(z.shape[0]) or inner(z)
    results, counts = [], []
    for height, width in sizes:
        generator = torch.Generator().manual_seed(width)
        clip = torch.randn(1, 24, 7, height, width, generator=generator)
        if rank == 0:
            results.append(tiles.decode_clip(model, clip).numpy())
        else:
            tiles.help_clips(model, [clip])
        counts.append(sum(counted))
        counted.clear()
    return results, counts


class Watcher:
    """A monitor that stops when the ranks' own rule says so, and a sink that keeps everything."""

    def __init__(self, agree, stop_at=None):
        self._agree = agree
        self._stop_at = stop_at
        self.asked = 0
        self.steps, self.done, self.chunks, self.sound = [], [], [], []
        self.previews = []

    def stage(self, stage, detail=""):
        pass

    def step(self, step, steps, seconds):
        self.steps.append((step, steps))

    def frames(self, done, total):
        self.done.append((done, total))

    def should_stop(self):
        self.asked += 1
        return self._agree(self.asked == self._stop_at)

    def notice(self, message):
        raise AssertionError(message)

    def audio(self, samples):
        self.sound.append(samples.copy())

    def video(self, frames):
        self.chunks.append(frames.copy())


def setup(rank, size, parallel, checkpoint, folder, runtime, dtype):
    return Setup(
        run="test",
        rank=rank,
        world_size=size,
        model="native",
        checkpoint=str(checkpoint),
        device=Device.CPU,
        dtype=dtype,
        rendezvous=Path(folder) / "store",
        cache_dir=Path(folder) / f"cache{rank}",
        runtime=RuntimeOptions(**runtime),
        parallel=Parallel(**parallel),
    )


def render(rank, size, parallel, checkpoint, folder, orders, runtime, stops=(), dtype=Dtype.FLOAT32):
    """Render each (request, media); what rank 0 made of each as a dict of arrays, and what every rank counted.

    stops: for some of the orders, the question at which the last rank wants to stop.
    """
    engine = Runtime.for_setup(
        setup(rank, size, parallel, checkpoint, folder, runtime, dtype), CPU, lambda message: None
    )
    previews = []
    hooks = engine.hooks(lambda step, picture: previews.append((step, picture.numpy())))
    pipeline = Pipeline(Path(checkpoint), "cpu", dtype.value, lambda *_: None, hooks)

    def agree(wish):
        if size == 1:
            return wish
        asked = torch.tensor([int(wish and rank == size - 1)])
        torch.distributed.all_reduce(asked, op=torch.distributed.ReduceOp.MAX)
        return bool(asked.item())

    made = []
    for number, (request, media) in enumerate(orders):
        watcher = Watcher(agree, stops[number] if number < len(stops) else None)
        previews.clear()
        result = {"stopped": None}
        try:
            generated = pipeline.generate(request, media, watcher if rank == 0 else None, watcher)
        except Stopped as stopped:
            generated, result["stopped"] = None, (stopped.stage, stopped.step)
        result["asked"] = watcher.asked
        result |= {"steps": watcher.steps, "done": watcher.done[-1:], "previews": list(previews)}
        if generated is not None:
            result |= {
                "latents": generated.latents.numpy(),
                "audio_latents": generated.audio_latents.numpy(),
                "audio": generated.audio.numpy(),
                "frames": np.concatenate(watcher.chunks),
            }
        made.append(result)
    return made
