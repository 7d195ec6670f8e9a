"""A whole job with everything resident, then a second one with another seed: stage times and memory.

Weights are random and made on the device, so loading is not measured; the forwards are the first of a 50-step schedule.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from backend.h3 import decode
from backend.presets import RuntimeOptions
from backend.runtime import plan, vae_tiles
from backend.runtime.attention import choose
from backend.runtime.conditioner import Conditioner
from backend.runtime.kernels import choose_kernels, triton_or_reason
from backend.runtime.preview import LinearPreview
from backend.runtime.transformer import FastTransformer
from bench import decode as decode_bench
from bench import models, report, step

COLUMNS = ["job", "encode_s", "tables_s", "first_step_after_s", "step_s", "first_second_s", "decode_s", "peak_gib"]


def main() -> None:
    """Measure, print a table, write the JSON."""
    parser = report.parser("end_to_end", __doc__)
    parser.add_argument("--forwards", type=int, default=2, help="of the schedule's 49")
    parser.add_argument("--clip", type=Path, default=None, help="a video whose frames are encoded instead of noise")
    report.run("end_to_end", measure, COLUMNS, parser.parse_args())


class Resident:
    """All components on one device, the projections replaced by the tables of the schedule."""

    def __init__(self, device: torch.device, dtype: torch.dtype, tiny: bool) -> None:
        self.device, self.dtype = device, dtype
        self.notices: list[str] = []
        started = time.perf_counter()
        self.transformer = models.transformer(device, dtype, tiny)
        self.fast = FastTransformer(
            self.transformer, choose_kernels(device, dtype, RuntimeOptions(), self.notices.append), self.notices.append
        )
        self.plan = [each.to(device) for each in step.schedule()]
        made_s = time.perf_counter() - started
        started = time.perf_counter()
        step.tables(self.transformer, self.fast, self.plan, device)
        self.tables_s = time.perf_counter() - started
        self.text_encoder = models.conditioner(device, dtype, tiny)
        self.conditioner = Conditioner(self.text_encoder, models.conditioner_layer(tiny), remember=True)
        self.vae = models.vae(device, dtype, tiny)
        self.audio_vae = models.audio_vae(device, tiny)
        ops, _ = triton_or_reason(device, dtype)
        if ops is not None:
            kernel = choose(device, dtype, "auto", self.vae.config.decoder_attention_head_dim)
            vae_tiles.speed_up(self.vae, kernel, ops)
        self.tiles = vae_tiles.TileDecoder(0, self.notices.append)
        print(f"models made in {made_s:.1f} s and {time.perf_counter() - started:.1f} s", flush=True)

    def sizes(self) -> dict[str, int]:
        """Bytes of each component."""
        named = {
            "transformer": self.transformer,
            "text_encoder": self.text_encoder,
            "vae": self.vae,
            "audio_vae": self.audio_vae,
        }
        found = {name: sum(each.nbytes for each in module.parameters()) for name, module in named.items()}
        installed = self.fast._tables
        assert installed is not None
        return found | {"adaln_tables": installed.tables.nbytes}

    def encode(self, tokens: Tensor) -> Tensor:
        """Prompt embeddings as diffusers' block asks for them."""
        out = self.text_encoder.model(
            input_ids=tokens,
            attention_mask=torch.ones_like(tokens),
            mm_token_type_ids=torch.zeros_like(tokens),
            use_cache=False,
            output_hidden_states=True,
        )
        return next(iter(out.hidden_states.values()))


def measure(device: torch.device, dtype: torch.dtype, options: argparse.Namespace) -> dict[str, Any]:
    """Job one cold, job two warm with another seed."""
    shape = models.TINY_SHAPES[0] if options.tiny else models.FULL_SHAPES[0]
    if options.clip is not None:
        decode_bench._pictures(options.clip, shape)
    resident = Resident(device, dtype, options.tiny)
    sizes = resident.sizes()
    tokens = torch.randint(0, 500, (1, min(models.TEXT_ROWS, shape.video_rows)), device=device)
    rows = []
    for number in (1, 2):
        row = job(resident, shape, tokens, seed=number, options=options)
        rows.append({"job": "first" if number == 1 else "second, other seed"} | row)
        print(rows[-1], flush=True)
    rows[0]["tables_s"] = round(resident.tables_s, 2)
    resident_gib = {each: round(size / 2**30, 2) for each, size in sizes.items()}
    resident_gib["sum"] = round(sum(sizes.values()) / 2**30, 2)
    previewed = preview(resident, shape)
    print("resident GiB:", resident_gib, "preview:", previewed)
    total = device.type == "cuda" and torch.cuda.get_device_properties(device).total_memory
    return {
        "what": "one job with everything resident, then another seed; random weights",
        "environment": report.environment(device),
        "shape": shape.name,
        "forwards": options.forwards,
        "kernel": f"{resident.fast.kernels.attention.name}, {resident.fast.kernels.name}",
        "resident_gib": resident_gib,
        "plan": plan.decide(sizes, total, plan.Offload.AUTO).as_dict() if total else None,
        "preview": previewed,
        "notices": resident.notices,
        "rows": rows,
    }


def job(
    resident: Resident, shape: models.Shape, tokens: Tensor, *, seed: int, options: argparse.Namespace
) -> dict[str, Any]:
    """One request: encode, forwards, decode to a file."""
    device = resident.device
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
    started = time.perf_counter()
    embeds = resident.encode(tokens)
    _wait(device)
    encoded = time.perf_counter() - started
    case = models.sequence(shape, device, resident.dtype, text_dim=embeds.shape[-1], seed=seed)
    case["encoder_hidden_states"] = embeds
    indices = case.pop("timestep_indices")  # into two timesteps, audio later than video; the first step has one
    del case["timestep"]
    resident.fast.begin(resident.plan)
    before = time.perf_counter() - started
    seconds = []
    for timestep in resident.plan[: options.forwards]:
        at = time.perf_counter()
        resident.fast(**case, timestep=timestep, timestep_indices=indices % len(timestep), return_dict=False)
        _wait(device)
        seconds.append(time.perf_counter() - at)
    decoded_at = time.perf_counter()
    sound = torch.cat(
        list(decode.audio_chunks(resident.audio_vae, torch.randn(2, 32, shape.audio_rows // 2, device=device))), dim=-1
    )
    audio_s = time.perf_counter() - decoded_at
    chunks: Iterator[np.ndarray] = decode_bench.stream(resident.vae, models.latents(shape, device), resident.tiles)
    if options.clip is not None:
        chunks = decode_bench.dressed(chunks, options.clip, shape)
    written = decode_bench.encode(chunks, shape)
    return {
        "encode_s": round(encoded, 3),
        "first_step_after_s": round(before, 3),
        "step_s": round(float(np.median(seconds)), 3),
        "audio_decode_s": round(audio_s, 3),
        "audio_samples": sound.shape[-1],
        "first_second_s": round(audio_s + written["first_second_s"], 2),
        "decode_s": round(audio_s + written["mp4_s"], 2),
        "peak_gib": round(torch.cuda.max_memory_allocated(device) / 2**30, 2) if device.type == "cuda" else None,
    }


def preview(resident: Resident, shape: models.Shape) -> dict[str, float]:
    """Seconds to fit the preview's matrix, and for one picture."""
    device = resident.device
    started = time.perf_counter()
    linear = LinearPreview.fit(resident.vae)
    _wait(device)
    fitted = time.perf_counter() - started
    latents = models.latents(shape, device)
    linear.picture(latents)
    _wait(device)
    started = time.perf_counter()
    linear.picture(latents).cpu()
    return {"fit_s": round(fitted, 4), "picture_s": round(time.perf_counter() - started, 5)}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
