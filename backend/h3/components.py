"""Load the components of a checkpoint folder, one at a time and with progress, through diffusers' own loaders.

The tiny checkpoint and the released one go the same way; nothing here knows requests or tasks.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Self

import torch
from diffusers.modular_pipelines.minimax_h3.modular_pipeline import MiniMaxH3ModularPipeline
from diffusers.utils import logging as diffusers_logging
from transformers.utils import logging as transformers_logging

from backend.h3.seams import Hooks, OnLoad

SHARED = ("tokenizer", "processor", "scheduler", "audio_scheduler", "text_encoder", "vae", "audio_vae")
TRANSFORMERS = ("transformer", "transformer_ref")
REPORT_INTERVAL_S = 0.2  # between two reports of one component; a bar of 1000 parameters need not be 1000 events
_MODELS = ("text_encoder", "vae", "audio_vae", *TRANSFORMERS)


class H3Components(MiniMaxH3ModularPipeline):
    """diffusers' component holder with the durations the model really makes, on a device that is told, not guessed."""

    device_of_execution = torch.device("cpu")
    tokenizer: Any  # components are attributes that diffusers sets when they are registered, None until then
    processor: Any
    scheduler: Any
    audio_scheduler: Any
    text_encoder: Any
    vae: Any
    audio_vae: Any
    transformer: Any
    transformer_ref: Any

    @property
    def min_duration(self) -> float:
        """Seconds; 4 by the model's README, where diffusers says 5."""
        return 4.0

    @property
    def max_duration(self) -> float:
        """Seconds; 15 s snaps up to 362 frames, which diffusers refuses."""
        return 362 / self.fps

    @property
    def _execution_device(self) -> torch.device:
        return self.device_of_execution


class Loader:
    """Loads components of one checkpoint folder into one `H3Components`.

    Models get `dtype`, except for the modules that their class pins to float32, and land on `load_device`; those that
    `load` of the hooks gives are taken as they are.
    """

    def __init__(self, checkpoint: Path, dtype: torch.dtype, load_device: torch.device, hooks: Hooks) -> None:
        self._load = hooks.load
        self._loaded = hooks.loaded
        self._checkpoint = checkpoint
        self._dtype = dtype
        self._load_device = load_device

    def open(self, execution_device: torch.device) -> H3Components:
        """The empty holder, with the checkpoint's own canvas settings; no weight is read."""
        components = H3Components(pretrained_model_name_or_path=str(self._checkpoint), local_files_only=True)
        components.device_of_execution = execution_device
        return components

    def load(self, components: H3Components, name: str, on_load: OnLoad) -> None:
        """Load component `name` and register it; `on_load` hears of its bytes from 0 to all."""
        spec = components.get_component_spec(name)
        options: dict[str, Any] = {"pretrained_model_name_or_path": str(self._checkpoint), "local_files_only": True}
        if name in _MODELS:
            options["dtype"] = self._dtype
            if self._load_device.type != "cpu":
                options["device_map"] = str(self._load_device)
        total = _weight_bytes(self._checkpoint / (spec.subfolder or name))
        on_load(name, 0, total)
        with _progress(lambda part: on_load(name, min(round(part * total), total), total)):
            component = None
            if name in _MODELS and self._load is not None and spec.type_hint is not None:
                component = self._load(name, spec.type_hint, self._checkpoint / (spec.subfolder or name), on_load)
            if component is None:
                component = spec.load(**options)
        if isinstance(component, torch.nn.Module):
            component.eval().requires_grad_(False)
            if self._loaded is not None:
                self._loaded(name, component)
        components.register_components(**{name: component})
        on_load(name, total, total)


def _weight_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


class _Meter:
    """Stands in for tqdm inside the two libraries' loaders and passes on how far they are."""

    def __init__(self, report: Any, iterable: Iterable[Any] | None, total: int | None) -> None:
        self._report = report
        self._iterable = iterable if iterable is not None else ()
        self.total = total if total is not None else (len(iterable) if hasattr(iterable, "__len__") else 0)  # type: ignore[arg-type]
        self.n = 0
        self._reported_at = 0.0

    def __iter__(self) -> Iterator[Any]:
        for item in self._iterable:
            yield item
            self.update(1)

    def update(self, n: int = 1) -> None:
        self.n += n
        now = time.monotonic()
        if self.total and self.n < self.total and now - self._reported_at >= REPORT_INTERVAL_S:
            self._reported_at = now
            self._report(self.n / self.total)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        pass

    def set_description(self, *_: object, **__: object) -> None:
        pass

    set_postfix = set_postfix_str = refresh = set_description


@contextlib.contextmanager
def _progress(report: Any) -> Iterator[None]:
    """Inside, the loaders' progress bars call `report(fraction)` instead of drawing."""

    def meter(*args: Any, **kwargs: Any) -> _Meter:
        return _Meter(report, args[0] if args else kwargs.get("iterable"), kwargs.get("total"))

    previous = transformers_logging.set_tqdm_hook(lambda _, args, kwargs: meter(*args, **kwargs))
    bars = diffusers_logging.tqdm
    # diffusers has no such hook; its loaders look the name up at each call.
    diffusers_logging.tqdm = meter  # type: ignore[assignment]
    try:
        yield
    finally:
        diffusers_logging.tqdm = bars
        transformers_logging.set_tqdm_hook(previous)
