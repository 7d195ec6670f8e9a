"""Constants of the forecast from measured requests: bench.forecast's JSON in, `rates.json` out, both sides compared.

Least squares over relative errors, no constant below zero; a forward's own curve comes from bench.step.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

from backend import codec, limits, presets
from backend.hardware import rates
from backend.hardware.forecast import Question, forecast, scaled_shape
from backend.hardware.model_size import ModelSize
from backend.hardware.probe import Hardware
from backend.hardware.request_shape import RequestShape
from backend.types import Stage
from bench import report
from bench.forecast import STAGES, pair, within

OVERLAP_PX, TILE_PX = 64, 256


def main() -> None:
    """Fit, print measured beside fitted, write `rates.json`."""
    parser = argparse.ArgumentParser(prog="python -m bench.fit", description=__doc__)
    parser.add_argument("measured", type=Path, nargs="?", default=rates.RESULTS_DIR / "forecast.json")
    parser.add_argument("--out", type=Path, default=None, help="folder for rates.json; default bench/results")
    options = parser.parse_args()
    content = json.loads(options.measured.read_text(encoding="utf-8"))
    found, rows = fit(content, options.measured.name)
    print(report.table(rows, ["request", "stage", "measured_s", "fitted_s", "ratio"]))
    print("written:", report.write("rates", codec.encode(found), options.out))
    if content["rows"][-1].get("shape") and options.out is None:
        rates.fitted.cache_clear()
        content["after_fit"] = again(content)
        print("within, before the fit:", content["within"], "after it:", content["after_fit"]["within"])
        options.measured.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def fit(content: dict[str, Any], name: str) -> tuple[rates.Fitted, list[dict[str, Any]]]:
    """The constants that fit best, and every stage's seconds by them."""
    device = content["environment"]["device"]
    nominal = rates.nominal_tflops(device)
    if nominal is None:
        raise SystemExit(f"{device}: its nominal rate is not in backend.hardware.rates.NOMINAL_TFLOPS")
    requests = _requests(content["rows"])
    size = ModelSize()
    text = [rates.text_s(size, each["whole"]["text_rows"], nominal) for each in requests]
    encoded = [[1.0, each["whole"]["text_rows"], each["whole"]["encoded_px"]] for each in requests]
    encode = _solve(encoded, [each["encode"]["measured_s"] for each in requests], text)
    shown = [_clip(each["whole"]["request"]) for each in requests]
    decode = _solve(shown, [each["decode"]["measured_s"] for each in requests])
    mux = float(np.median([each["mux"]["measured_s"] for each in requests]))
    found = rates.Fitted(
        device=device,
        nominal_tflops=nominal,
        source=f"{name}, {content['environment']['date']}",
        encode_s=round(encode[0], 4),
        encode_row_s=float(f"{encode[1]:.4g}"),
        encode_px_s=float(f"{encode[2]:.4g}"),
        tile_s=round(decode[0], 6),
        rest_px_s=float(f"{decode[1]:.4g}"),
        mux_s=mux,
    )
    rows = []
    for each, spoken, pictures, clip in zip(requests, text, encoded, shown, strict=True):
        by = {"encode": spoken + float(np.dot(pictures, encode)), "decode": float(np.dot(clip, decode)), "mux": mux}
        for stage, seconds in by.items():
            real = each[stage]["measured_s"]
            ratio = round(seconds / real, 3)
            rows.append(
                {
                    "request": each["whole"]["request"],
                    "stage": stage,
                    "measured_s": real,
                    "fitted_s": round(seconds, 3),
                    "ratio": ratio,
                }
            )
    return found, rows


def again(content: dict[str, Any]) -> dict[str, Any]:
    """The forecast as it is now beside the same measurements: those that it was fitted to, so no proof by itself."""
    hardware = codec.decode(Hardware, content["hardware"])
    preset = presets.hardware_presets()[content["preset"]]
    rows = []
    for request in _requests(content["rows"]):
        shape = codec.decode(RequestShape, request["whole"]["shape"])
        question = Question(
            preset=preset,
            shape=shape,
            size=ModelSize(),
            shape_at=lambda *at, shape=shape: scaled_shape(shape, *at),
            warm=True,
            tabulated=True,
        )
        told = forecast(hardware, question)
        memory = {each.stage: each.gib for each in told.placement.ranks[0].stages}
        seconds = {each.stage: each.seconds for each in told.times}
        for name, row in request.items():
            whole = name == "whole"
            told_s = sum(seconds[stage] for stage in STAGES) if whole else seconds[Stage(name)]
            told_gib = told.gpu_gib if whole else memory.get(Stage(name))
            now = pair("s", told_s, row["measured_s"]) | pair("gib", told_gib, row["measured_gib"])
            rows.append({"request": row["request"], "stage": name, **now})
    return {"within": within(rows), "rows": rows}


def _solve(terms: list[list[float]], measured: list[float], known: list[float] | None = None) -> list[float]:
    """Coefficients of `terms`, none below zero, with the smallest relative errors; `known` seconds come on top."""
    seconds = np.array(measured)
    matrix = np.array(terms) / seconds[:, None]
    scale = np.maximum(np.abs(matrix).max(axis=0), 1e-30)
    target = np.maximum(0.0, 1 - np.array(known if known is not None else np.zeros(len(seconds))) / seconds)
    return [float(each) for each in nnls(matrix / scale, target)[0] / scale]


def _requests(rows: list[dict[str, Any]]) -> list[dict[str, dict[str, Any]]]:
    """Rows by stage, a request at a time."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["request"], {})[row["stage"]] = row
    return [each for each in found.values() if "whole" in each]


def _clip(request: str) -> list[float]:
    """(VAE tiles of all chunks, pixels of all frames) of "0 t2va 1344x768x209"."""
    width, height, frames = (int(part) for part in request.split()[-1].split("x"))
    tiles = 1
    for side in (width, height):
        tiles *= 1 if side <= TILE_PX else -(-(side - OVERLAP_PX) // (TILE_PX - OVERLAP_PX))
    chunks = (frames - limits.LATENTS_PER_CHUNK) // limits.FRAMES_PER_CHUNK
    return [tiles * chunks, frames * width * height]


if __name__ == "__main__":
    main()
