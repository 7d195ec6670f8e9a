"""GPU checks of kernels: the block and the decoder in each way they can run, and the decode of a clip.

Run by `gpu_checks`.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from diffusers import AutoencoderKLMiniMaxH3, MiniMaxH3Transformer3DModel

from bench import models, report
from bench.gpu_bench import SHALLOW_TRANSFORMER, SHALLOW_VAE, Bench, Figures, require


def compiled(bench: Bench) -> Figures:
    """The trunk and the VAE's decoder by hand-written kernels, by torch.compile, and plain: seconds and distance."""
    return {**_block_ways(bench), **_decoder_ways(bench)}


def _block_ways(bench: Bench) -> Figures:
    from backend.presets import RuntimeOptions
    from backend.runtime.block import Kernels
    from backend.runtime.kernels import choose_kernels
    from backend.runtime.ops import TorchOps
    from backend.runtime.transformer import FastTransformer

    layers = {} if bench.tiny else SHALLOW_TRANSFORMER
    base = models.TINY_TRANSFORMER if bench.tiny else {}
    model = models.on_meta(MiniMaxH3Transformer3DModel, **(base | layers))
    models.random_weights(model, bench.device, bench.dtype)
    shape = models.TINY_SHAPES[0] if bench.tiny else models.FULL_SHAPES[1]
    case = models.sequence(shape, bench.device, bench.dtype, text_dim=model.config.text_dim)
    notices: list[str] = []
    best = choose_kernels(bench.device, bench.dtype, RuntimeOptions(), notices.append)
    wanted = choose_kernels(bench.device, bench.dtype, RuntimeOptions(triton=False, compile=True), notices.append)
    fast = FastTransformer(model, best, notices.append)
    figures: Figures = {"attention": best.attention.name, "chosen": best.name}
    plain = None
    for name, kernels in (("plain", Kernels(best.attention, TorchOps())), ("chosen", best), ("compiled", wanted)):
        fast.kernels = kernels
        started = time.perf_counter()
        fast(**case, return_dict=False)
        first_s = time.perf_counter() - started
        row = report.timed(lambda: fast(**case, return_dict=False), bench.device, warm=1, repeats=3)
        figures[f"{name}_ms"] = round(row["median_s"] * 1e3, 1)
        if name == "compiled":
            figures["compile_s"] = round(first_s - row["median_s"], 1)
        video = row["result"][0]
        plain = video if plain is None else plain
        figures[f"{name}_relative"] = round(report.difference(plain, video)["relative"], 5)
    require(wanted.name == "compiled", f"the block did not compile: {notices}")
    require(figures["compiled_relative"] < 0.02, "the compiled block differs by more than roundings")
    require(not bench.cuda or best.name == "triton", f"the hand-written kernels were not chosen: {notices}")
    slower = figures["chosen_ms"] > 1.02 * figures["compiled_ms"]
    require(not bench.cuda or not slower, "the compiled block is faster than the hand-written kernels: choose it")
    return figures


def _decoder_ways(bench: Bench) -> Figures:
    from backend.runtime import vae_tiles
    from backend.runtime.attention import choose
    from backend.runtime.kernels import triton_or_reason

    vae = models.on_meta(AutoencoderKLMiniMaxH3, **(models.TINY_VAE if bench.tiny else SHALLOW_VAE))
    models.random_weights(vae, bench.device, bench.dtype)
    shape = models.TINY_SHAPES[0] if bench.tiny else models.FULL_SHAPES[1]
    clip = models.latents(shape, bench.device)[:, :, :7].to(bench.dtype)
    tiles = vae_tiles.TileDecoder(0, lambda _: None)

    def measure() -> tuple[float, Any]:
        row = report.timed(lambda: tiles.decode_clip(vae, clip), bench.device, warm=1, repeats=3)
        return round(row["median_s"] * 1e3, 1), row["result"]

    figures: Figures = {}
    figures["vae_plain_ms"], plain = measure()
    ops, _ = triton_or_reason(bench.device, bench.dtype)
    if ops is not None:
        kernel = choose(bench.device, bench.dtype, "auto", vae.config.decoder_attention_head_dim)
        vae_tiles.speed_up(vae, kernel, ops)
        figures["vae_fused_ms"], fused = measure()
        figures["vae_fused_relative"] = round(report.difference(plain, fused)["relative"], 5)
        vae_tiles.slow_down(vae)
    for block in vae.decoder.transformer_blocks:
        block.compile()
    started = time.perf_counter()
    figures["vae_compiled_ms"], other = measure()
    figures["vae_compile_s"] = round(time.perf_counter() - started - 4e-3 * figures["vae_compiled_ms"], 1)
    figures["vae_compiled_relative"] = round(report.difference(plain, other)["relative"], 5)
    return figures


def decode(bench: Bench) -> Figures:
    """124 frames at 768p through the whole decoder: tiles stacked with fused blocks, against diffusers' own tiles."""
    from backend.h3 import decode as decoding
    from backend.h3.seams import stock_decode_clip
    from backend.runtime import vae_tiles
    from backend.runtime.attention import choose
    from backend.runtime.frames import to_host
    from backend.runtime.kernels import triton_or_reason

    vae = models.vae(bench.device, bench.dtype, bench.tiny)
    shape = models.TINY_SHAPES[0] if bench.tiny else models.FULL_SHAPES[1]
    latents = models.latents(shape, bench.device)
    row = report.timed(
        lambda: list(decoding.video_chunks(vae, latents, stock_decode_clip)), bench.device, warm=0, repeats=1
    )
    expected, figures = torch.cat(row["result"]), {"stock_s": row["median_s"], "stock_gib": row["peak_gib"]}
    ops, reason = triton_or_reason(bench.device, bench.dtype)
    require(ops is not None or not bench.cuda, reason)
    if ops is not None:
        kernel = choose(bench.device, bench.dtype, "auto", vae.config.decoder_attention_head_dim)
        vae_tiles.speed_up(vae, kernel, ops)
        figures["kernel"] = kernel.name
    tiles = vae_tiles.TileDecoder(0, lambda _: None)
    row = report.timed(
        lambda: list(decoding.video_chunks(vae, latents, tiles.decode_clip, to_host)), bench.device, repeats=2
    )
    got = torch.cat(row["result"])
    gap = (expected.int() - got.int()).abs().float()
    figures |= {"ours_s": row["median_s"], "ours_gib": row["peak_gib"], "frames": got.shape[0]}
    figures |= {"max": int(gap.max()), "mean": round(float(gap.mean()), 4)}
    require(got.shape[0] == shape.num_frames, f"{got.shape[0]} frames came of {shape.num_frames}")
    require(figures["mean"] < 1, "frames differ from stock by more than a level on average")
    return figures
