"""One rank's runtime: everything a `messages.Setup` asks for, as the hooks that `h3` takes.

Ties kernels, tables, tiles, plan and loader together; decides no result. Wiring: `Runtime.for_setup(setup, device,
notify)`, then `Pipeline(..., hooks=runtime.hooks())`, and `runtime.info()` into Ready and the sidecar.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from backend.h3.seams import Forward, Hooks, OnLoad
from backend.presets import RuntimeOptions
from backend.process.messages import Setup
from backend.runtime import adaln_store, adaln_tables, conditioner, load, plan, shortage, streaming, vae_tiles
from backend.runtime.adapters import AdapterError, Adapters, ChangedProjections
from backend.runtime.attention import choose
from backend.runtime.frames import to_host
from backend.runtime.kernels import choose_kernels, triton_or_reason
from backend.runtime.parallel.sharing import Sharing
from backend.runtime.preview import Previewer
from backend.runtime.residency import Residency
from backend.runtime.sizes import CONDITIONER_LAYER, Sizes, plan_name
from backend.runtime.transformer import FastTransformer
from backend.types import Adapter, GenerationRequest, Stage

Notify = Callable[[str], None]
LONGEST = (300, 4)  # steps and distinct timesteps that tables must beat the projections for, to leave those unread
TRANSFORMERS = ("transformer", "transformer_ref")


class Runtime:
    """How one rank computes. `notify` is told, once each, of everything that falls back to something slower.

    One of several ranks makes it after joining the others, as they do.
    """

    def __init__(self, setup: Setup, device: torch.device, notify: Notify) -> None:
        self._options: RuntimeOptions = setup.runtime
        self._checkpoint = Path(setup.checkpoint)
        self._device = device
        self._dtype: torch.dtype = getattr(torch, setup.dtype.value)
        self._notify = _Once(notify)
        self._sharing = Sharing(setup, device, self._notify)
        sizes = Sizes(setup, self._sharing, self._without_projections)
        self.kernels = choose_kernels(device, self._dtype, self._options, self._notify, sizes.head_dim)
        self.plan = self._decide(sizes)
        self._streamer = (
            streaming.Streamer(device, self._options.resident_layers, self._notify) if self.plan.streamed else None
        )
        self._residency = self._mover()
        self._tiles = vae_tiles.TileDecoder(self._options.vae_tile_batch, self._notify, self._sharing.tiles)
        self._store = adaln_store.TableStore(setup.cache_dir / "adaln")
        self._vae_kernel = "torch's default"
        self._previewer: Previewer | None = None
        self.conditioner: conditioner.Conditioner | None = None
        self.fast: FastTransformer | None = None
        self._transformer_name = TRANSFORMERS[0]
        self._installed: adaln_tables.Installation | None = None
        self._memory: adaln_tables.MemoryReport | None = None
        self._no_adapters = setup.parallel.no_adapters
        self._adapters: Adapters | None = None  # what is merged into the transformer that is loaded
        self.table_source = "none"

    @classmethod
    def for_setup(cls, setup: Setup, device: torch.device, notify: Notify) -> Runtime:
        """The runtime a setup asks for on `device`. Raises Unavailable where kernel or memory do not suffice."""
        return cls(setup, device, notify)

    def hooks(self, show: Callable[[int, Tensor], None] | None = None) -> Hooks:
        """What `h3.pipeline.Pipeline` takes.

        show: gets previews as (step, uint8 CPU tensor (h, w, 3)), every `preview_every` steps once the VAE is there.
        """
        if show is not None and self._options.preview_every > 0:
            self._previewer = Previewer(self._options.preview_every, show, self._notify)
        return Hooks(
            load=self.load_component if self._options.fast_load else None,
            loaded=self.adopt,
            prepare_transformer=self.prepare_transformer,
            adapt=self.adapt,
            begin_denoise=self.begin_denoise,
            decode_clip=self.decode_clip,
            help_decode=self.help_decode if self._sharing.helps_decode else None,
            to_host=to_host,
            place=None if self._residency is None else self._residency.place,
            preview=self._previewer,
        )

    def recovering(self, request: GenerationRequest, stage: Callable[[], Stage | None]) -> AbstractContextManager[None]:
        """To render inside of: memory that runs out there is a `shortage.Exhausted`, and the next job finds it free."""
        return shortage.caught(request, stage, self._release, self._device)

    def _release(self) -> plan.Plan:
        if self.fast is not None:
            self.fast.forget()
        if self._residency is not None:
            self._residency.clear()
        return self.plan

    def info(self) -> dict[str, object]:
        """Names and figures for log, page and sidecar."""
        memory = self._memory
        return {
            "attention": self.kernels.attention.name,
            "block": self.kernels.name if self._options.fused_block else "stock",
            "vae_attention": self._vae_kernel,
            "plan": self.plan.as_dict(),
            "parallel": self._sharing.info(),
            "adapters": self._adapters.identity if self._adapters is not None else "",
            "adaln_tables": {
                "source": self.table_source,
                "weights_gib": round(memory.weights_bytes / plan.GIB, 2) if memory else None,
                "tables_gib": round(memory.tables_bytes / plan.GIB, 2) if memory else None,
                "net_gib": round(memory.net_bytes / plan.GIB, 2) if memory else None,
            },
        }

    # ---- hooks ----------------------------------------------------------------------------------------------------

    def load_component(self, name: str, kind: type, folder: Path, on_load: OnLoad) -> nn.Module | None:
        """A model read by the parallel loader to where the plan wants it; None: load it as the library does."""
        if name in TRANSFORMERS:
            self._forget_transformer()
        model, wanted = self._outline(name, kind, folder)
        home = torch.device("cpu") if plan_name(name) in self.plan.parked else self._device
        wanted, cut = self._sharing.needed(name, wanted), self._sharing.cut(name)
        load.fill(model, wanted, home, self._dtype, lambda done, total: on_load(name, done, total), cut)
        return model

    def prepare_transformer(self, transformer: nn.Module) -> Forward:
        """The transformer as the pipeline calls it from now on."""
        self._forget_transformer()
        self.fast = FastTransformer(
            transformer,
            self.kernels,
            self._notify,
            fused=self._options.fused_block,
            ranks=self._sharing.trunk,
            stream=None if self._streamer is None else self._streamer.trunk,
        )
        self._adapters = Adapters(self._checkpoint / self._transformer_name, self._device)
        return self.fast

    def adapt(self, adapters: tuple[Adapter, ...]) -> None:
        """Have exactly these adapters merged into the transformer. Raises AdapterError, with the model as it was."""
        if self._adapters is None or self.fast is None:
            raise RuntimeError("adapt before prepare_transformer: there is no transformer")
        if adapters and self._no_adapters is not None:
            raise AdapterError(f"adapters: {self._no_adapters}; remove them, or choose a preset without that")
        self._adapters.apply(self.fast.model, adapters, self._release)

    def _forget_transformer(self) -> None:
        """Let go of the transformer that was in use, so that no memory is held for two."""
        if self.fast is not None:
            self.fast.forget()
        if self._streamer is not None:
            self._streamer.forget(TRANSFORMERS[0])
        if self._residency is not None:
            self._residency.drop(TRANSFORMERS)
        self.fast = self._installed = None

    def begin_denoise(self, timesteps: tuple[Tensor, ...]) -> None:
        """Have the tables of this schedule, then tell the transformer what comes."""
        if self.fast is None:
            raise RuntimeError("begin_denoise before prepare_transformer: there is no transformer")
        self._tabulate(timesteps)
        self.fast.begin(timesteps)

    def decode_clip(self, vae: Any, latents: Tensor) -> Tensor:
        """See `TileDecoder.decode_clip`."""
        self._speed_up(vae)
        self._fit_preview(vae)
        return self._tiles.decode_clip(vae, latents)

    def help_decode(self, vae: Any, latents: Tensor) -> None:
        """See `TileDecoder.help_clips`."""
        self._speed_up(vae)
        self._tiles.help_clips(vae, [latents])

    def _fit_preview(self, vae: Any) -> None:
        """Fit the preview's matrix to the VAE where it is on the device: at load, or at the first decode if parked."""
        if self._previewer is not None:
            self._previewer.fit(vae)

    # ---- tables ---------------------------------------------------------------------------------------------------

    def _tabulate(self, timesteps: Sequence[Tensor]) -> None:
        assert self.fast is not None
        if not self._options.adaln_tables:
            return
        model: Any = self.fast.model
        unread = any(parameter.is_meta for parameter in model.parameters())
        most = max(each.shape[0] for each in timesteps)
        forecast = adaln_tables.forecast(dict(model.config), len(timesteps), most, self._dtype.itemsize)
        if forecast.net_bytes <= 0 and not unread and self._installed is None:
            self._memory, self.table_source = forecast, "not used: larger than the projections"
            self.fast.install(None)
            return
        folder = self._checkpoint / self._transformer_name
        # Device and precision decide the last bits, so tables made otherwise are other tables.
        identity = f"{adaln_store.checkpoint_identity(folder)} {self._device.type} {self._dtype}"
        key = adaln_tables.TableKey.of(timesteps, identity, "" if self._adapters is None else self._adapters.identity)
        if self._installed is not None and self._installed.tables.key == key:
            self.table_source = "in place"
            return
        tables = self._store.load(key, self._device)
        self.table_source = "disk"
        if tables is None:
            tables = self._build(folder, model, timesteps, key)
        installation = adaln_tables.Installation(model, tables)
        installation.release()
        self._installed = installation
        self._memory = replace(forecast, tables_bytes=tables.nbytes)
        self.fast.install(installation)

    def _build(
        self, folder: Path, model: Any, timesteps: Sequence[Tensor], key: adaln_tables.TableKey
    ) -> adaln_tables.AdaLNTables:
        source: adaln_tables.Projections
        source = adaln_store.ShardProjections(folder, model, self._device, self._dtype)
        self.table_source = "shards"
        if self._adapters is not None and self._adapters.changes:
            source, self.table_source = (
                ChangedProjections(source, self._adapters.changes, self._device),
                "shards, adapted",
            )
        tables = adaln_tables.build(source, [each.to(self._device) for each in timesteps], key)
        try:
            self._store.save(tables)
        except OSError as error:
            self._notify(f"AdaLN tables could not be kept on disk ({error}); the next start computes them again.")
        return tables

    # ---- models ---------------------------------------------------------------------------------------------------

    def _outline(self, name: str, kind: type, folder: Path) -> tuple[nn.Module, dict[str, Any]]:
        """The model on the meta device, with what is not needed cut off, and what to read for it."""
        model = load.build(kind, folder)
        if name == "text_encoder":
            conditioner.cut(model, CONDITIONER_LAYER)
        wanted = load.needed(model, folder)
        if name in TRANSFORMERS and self._without_projections(load.config_of(folder)):
            skipped = set(adaln_store.projection_names(len(model.transformer_blocks)))  # type: ignore[arg-type]
            wanted = {key: entry for key, entry in wanted.items() if key.rpartition(".")[0] not in skipped}
        return model, wanted

    def _without_projections(self, config: dict[str, Any]) -> bool:
        """Whether tables will replace the projections whatever the schedule, so that they need not be read."""
        smaller = adaln_tables.forecast(config, *LONGEST, self._dtype.itemsize).net_bytes > 0
        return self._options.adaln_tables and self._options.fast_load and smaller

    def adopt(self, name: str, model: Any) -> None:
        """Take a model that was loaded, by us or by the libraries, into use: cut, remembered, sped up."""
        if name == "text_encoder":
            conditioner.cut(model, CONDITIONER_LAYER)
            bring = self._residency.ensure if self._residency is not None else None
            remember = self._options.prompt_cache
            self._sharing.encode(model, CONDITIONER_LAYER)
            if self._streamer is not None:
                self._streamer.conditioner(model)
            self.conditioner = conditioner.Conditioner(model, CONDITIONER_LAYER, remember=remember, bring=bring)
        if name == "vae":
            # Before it is ever moved: the fused weights then move as the one storage they are.
            self._speed_up(model)
            if name in self.plan.resident:
                self._warm(model)
        if name in TRANSFORMERS:
            self._transformer_name = name

    def _speed_up(self, vae: Any) -> None:
        if self._vae_kernel != "torch's default" or not self._options.fused_block or not self._options.triton:
            return
        ops, _ = triton_or_reason(self._device, self._dtype)
        if ops is None:
            return  # said by `choose_kernels` already
        attention = choose(self._device, self._dtype, self._options.attention, vae.config.decoder_attention_head_dim)
        vae_tiles.speed_up(vae, attention, ops)
        self._vae_kernel = attention.name

    def _mover(self) -> Residency | None:
        """Who moves parked components; None where nothing is parked. Both transformers answer to one plan entry."""
        if not self.plan.parked:
            return None
        parked = (*self.plan.parked, TRANSFORMERS[1]) if TRANSFORMERS[0] in self.plan.parked else self.plan.parked
        # Only a conditioner of ours asks for itself; any other must be there when its block runs.
        lazy = ("text_encoder",) if self._options.fast_load else ()
        stays = None if self._streamer is None else streaming.stays
        return Residency(self._device, parked, self._left, lazy, stays)

    @torch.no_grad()
    def _warm(self, vae: Any) -> None:
        """Compile the decoder's kernels now, by one tile of zeros, so that the first clip need not wait for it."""
        if self._device.type == "cuda":
            frames, side = vae.tokens_chunk_size + vae.token_overlap, vae.tile_sample_min_height
            size = (1, vae.config.latent_channels, frames, *(side // vae.spatial_compression_ratio,) * 2)
            vae.decoder(
                vae.post_quant_conv(torch.zeros(size, device=self._device, dtype=vae.post_quant_conv.weight.dtype))
            )
        self._fit_preview(vae)

    def _left(self, name: str) -> None:
        if name in TRANSFORMERS and self.fast is not None:
            self.fast.forget()
        if self._streamer is not None:
            self._streamer.leave(name)

    def _decide(self, sizes: Sizes) -> plan.Plan:
        weights = sizes.weights()
        if self._device.type != "cuda":
            return plan.on_cpu(weights, self._options.offload)
        free = vae_tiles.free_bytes(self._device) or 0
        return plan.decide(weights, free, self._options.offload, sizes.work(), sizes.streamed())


class _Once:
    """Passes each message on once."""

    def __init__(self, notify: Notify) -> None:
        self._notify = notify
        self._said: set[str] = set()

    def __call__(self, message: str) -> None:
        if message not in self._said:
            self._said.add(message)
            self._notify(message)
