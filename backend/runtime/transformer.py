"""A diffusers MiniMax-H3 transformer that runs fast: same parameters, same call, same result up to rounding.

What is constant in a request (text stream, rotary tables, row plan) is computed once; schedules, loops and requests
are not known here, only the timesteps that `begin` announces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from diffusers.models.transformers.transformer_minimax_h3 import MiniMaxH3AttnProcessor, MiniMaxH3TransformerOutput
from torch import Tensor, nn

from backend.runtime.adaln_tables import MODALITIES, Bits, Installation, timestep_bits
from backend.runtime.block import BlockWeights, Kernels, Modulation, NotFusable, Rope, run_trunk
from backend.runtime.ops import Modulated, Norm, rotate
from backend.runtime.parallel.ranks import OneRank
from backend.runtime.parallel.rows import AllRows, Stream

Notify = Callable[[str], None]


@dataclass(slots=True)
class _Remembered:
    """A value computed from tensors of the request, kept while the very same tensors come back."""

    sources: tuple[Tensor, ...]
    versions: tuple[int, ...]
    value: Any

    def of(self, sources: tuple[Tensor, ...]) -> bool:
        same = all(mine is theirs for mine, theirs in zip(self.sources, sources, strict=True))
        return same and self.versions == tuple(each._version for each in sources)


class FastTransformer:
    """Callable like `MiniMaxH3Transformer3DModel.forward`, on the parameters of the model it wraps.

    Falls back to the model's own forward, said once through `notify`, where the fused path does not apply. With several
    ranks each calls it with the whole sequence, computes its share and gets the whole result.
    """

    def __init__(
        self,
        model: nn.Module,
        kernels: Kernels,
        notify: Notify,
        fused: bool = True,
        ranks: OneRank | None = None,
        stream: Callable[[Sequence[BlockWeights]], Sequence[BlockWeights]] | None = None,
    ) -> None:
        """`stream`: brings blocks whose matrices wait in host memory, one after the other."""
        self._stream = stream
        self.model: Any = model
        self.kernels = kernels
        self._ranks = ranks or OneRank()
        self._ranks.take(model)
        self._notify = notify
        self._fused = fused
        self._tables: Installation | None = None
        self._announced: list[tuple[Tensor, Bits]] = []
        self._memory: dict[str, _Remembered] = {}
        self._blocks: Sequence[BlockWeights] | None = None
        use_attention(model, kernels)

    def install(self, tables: Installation | None) -> None:
        """Modulate from these tables from now on; None: from the model's projections."""
        self._tables = tables

    def begin(self, timesteps: Sequence[Tensor]) -> None:
        """Announce the distinct timesteps (n,) of each forward to come; forwards pass these very tensors.

        Reading them waits for the device once, here, instead of in every step. Also looks at the weights again, which
        an adapter may have changed since the last request.
        """
        self._announced = [(each, timestep_bits(each)) for each in timesteps]
        self._memory.clear()
        self._blocks = self._fuse() if self._fused else None

    def forget(self) -> None:
        """Let go of everything held on the device beside the model: views of its weights, values of a request."""
        self._announced = []
        self._memory.clear()
        self._blocks = None
        self._ranks.forget()

    def __call__(  # noqa: PLR0913  (diffusers' own signature)
        self,
        hidden_states: Tensor,
        audio_hidden_states: Tensor,
        encoder_hidden_states: Tensor,
        timestep: Tensor,
        timestep_indices: Tensor,
        token_tags: Tensor,
        position_ids: Tensor,
        video_indices: Tensor,
        audio_indices: Tensor,
        text_indices: Tensor,
        attention_kwargs: dict[str, Any] | None = None,
        return_dict: bool = True,
    ) -> Any:
        """See `MiniMaxH3Transformer3DModel.forward`; a batch of one. Raises TableError for a step without a table."""
        if self._tables is not None:
            self._tables.select(self._bits(timestep))
        if self._blocks is None and self._fused:
            self._blocks = self._fuse()
        if hidden_states.shape[0] != 1 or attention_kwargs or (self._blocks is None and not self._ranks.several):
            if self._ranks.several:
                raise ValueError("hidden_states: several ranks share one sequence, without attention_kwargs")
            return self.model(
                hidden_states=hidden_states,
                audio_hidden_states=audio_hidden_states,
                encoder_hidden_states=encoder_hidden_states,
                timestep=timestep,
                timestep_indices=timestep_indices,
                token_tags=token_tags,
                position_ids=position_ids,
                video_indices=video_indices,
                audio_indices=audio_indices,
                text_indices=text_indices,
                attention_kwargs=attention_kwargs,
                return_dict=return_dict,
            )
        model = self.model
        text = self._once("text", (encoder_hidden_states,), self._refined_text)
        rows = self._once("share", (text_indices, video_indices, audio_indices), self._ranks.rows)
        kernels = self._ranks.kernels(self.kernels, rows)
        rope = self._once("rope", (position_ids,), lambda ids: self._ranks.rope(self._rotary(ids, text.dtype), rows))
        index = self._once(
            "rows", (timestep_indices, token_tags), lambda times, tags: rows.mine(times * MODALITIES + tags)
        )
        x = self._packed(text, hidden_states[0], audio_hidden_states[0], rows)
        temb = self._temb(timestep)
        x = self._trunk(x, temb, index, rope, kernels)

        shift, scale = model.norm_out.linear(self._activated(temb, model.norm_out.linear)).chunk(2, dim=-1)
        norm = Modulated(Norm(model.norm_out.norm.weight, model.norm_out.norm.eps), shift, scale)
        times = rows.mine(timestep_indices)
        video = self._head(model.proj_out, x, norm, times, rows.video)
        audio = self._head(model.audio_proj_out, x, norm, times, rows.audio)
        video, audio = (each[None] for each in rows.gather(video, audio))
        if not return_dict:
            return video, audio
        return MiniMaxH3TransformerOutput(sample=video, audio_sample=audio)

    def _trunk(self, x: Tensor, temb: Tensor, index: Tensor, rope: Rope, kernels: Kernels) -> Tensor:
        """Rows through all blocks; a compiled graph that fails is replaced by the next best way, once and for all."""
        blocks = self._blocks
        if blocks is None:
            use_attention(self.model.transformer_blocks, kernels)
            for block in self.model.transformer_blocks:
                x = block(x[None], temb, index, rope)[0]
            return x

        def modulation(layer: int) -> Modulation:
            if self._tables is not None:
                return Modulation(*self._tables.tables.block(layer, self._tables.cursor.step).chunk(6, dim=-1))
            return Modulation(*self.model.transformer_blocks[layer].adaln_proj(temb))

        if kernels.compiled is None:
            return run_trunk(x, blocks, modulation, index, rope, kernels)
        try:
            return run_trunk(x, blocks, modulation, index, rope, kernels)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # every failure of dynamo and inductor is one
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            self.kernels.compiled = kernels.compiled = None
            self._notify(
                f"The block could not be compiled ({reason}); it runs as {self.kernels.name}, which is slower."
            )
            return run_trunk(x, blocks, modulation, index, rope, kernels)

    def _packed(self, text: Tensor, video: Tensor, audio: Tensor, rows: AllRows) -> Tensor:
        """This rank's rows of the packed sequence, (local, hidden), in the text stream's precision; dead ones zero."""
        x = text.new_zeros((rows.local, text.shape[-1]))
        x.index_copy_(0, rows.text.where, rows.text.of(text))
        for part, stream, proj in (
            (rows.video, video, self.model.proj_in),
            (rows.audio, audio, self.model.audio_proj_in),
        ):
            x.index_copy_(0, part.where, proj(part.of(stream).to(proj.weight.dtype)).to(x.dtype))
        return x

    def _head(self, head: nn.Linear, x: Tensor, norm: Modulated, times: Tensor, part: Stream) -> Tensor:
        """Output norm and head over this rank's rows of one modality, (n, channels)."""
        at = part.where
        normed = self.kernels.ops.norm_modulate(x.index_select(0, at), norm, times.index_select(0, at))
        return head(normed.to(head.weight.dtype))

    def _refined_text(self, embeds: Tensor) -> Tensor:
        embedder = self.model.context_embedder
        return self.model.token_refiner(embedder(embeds.to(embedder.weight.dtype)))[0]

    def _rotary(self, position_ids: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        cos, sin = self.model.rope(position_ids)
        return cos.to(dtype), sin.to(dtype)

    def _temb(self, timestep: Tensor) -> Tensor:
        if self._tables is not None:
            return timestep[:, None]  # only its length is looked at
        embedder = self.model.time_embedder
        return embedder(self.model.time_proj(timestep).to(embedder.linear_1.weight.dtype))

    def _activated(self, temb: Tensor, projection: nn.Module) -> Tensor:
        return nn.functional.silu(temb).to(next(projection.parameters()).dtype)

    def _bits(self, timestep: Tensor) -> Bits:
        for announced, bits in self._announced:
            if announced is timestep:
                return bits
        return timestep_bits(timestep)

    def _once(self, name: str, sources: tuple[Tensor, ...], compute: Callable[..., Any]) -> Any:
        known = self._memory.get(name)
        if known is None or not known.of(sources):
            versions = tuple(each._version for each in sources)
            known = self._memory[name] = _Remembered(sources, versions, compute(*sources))
        return known.value

    def _fuse(self) -> Sequence[BlockWeights] | None:
        try:
            blocks = self._ranks.blocks(self.model)
            return blocks if self._stream is None else self._stream(blocks)
        except NotFusable as reason:
            self._fused = False
            self._notify(f"The fused block is not used: {reason}. Steps are slower; results are the same.")
            return None


def use_attention(model: Any, kernels: Kernels) -> None:
    """Make attention modules of a model (its refiner and, on the stock path, its trunk) use the chosen kernel."""
    module: Any
    for module in model.modules():
        processor = getattr(module, "processor", None)
        if isinstance(processor, MiniMaxH3AttnProcessor | KernelProcessor):
            module.set_processor(KernelProcessor(kernels))


class KernelProcessor:
    """diffusers' H3 attention processor with the attention itself done by a chosen kernel."""

    _attention_backend = None
    _parallel_config = None

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        rotary_emb: tuple[Tensor, Tensor] | None = None,
        attention_mask: Tensor | None = None,
    ) -> Tensor:
        """(1, rows, hidden) -> (1, rows, hidden); a mask is refused, since no kernel here takes one."""
        if attention_mask is not None:
            raise ValueError("attention_mask: MiniMax-H3 attends to the whole packed sequence, without a mask")
        query, key, value = (
            projection(hidden_states).unflatten(-1, (attn.heads, -1))
            for projection in (attn.to_q, attn.to_k, attn.to_v)
        )
        query, key = attn.norm_q(query), attn.norm_k(key)
        if rotary_emb is not None:
            query, key = rotate(query, *rotary_emb), rotate(key, *rotary_emb)
        attended = self._kernels.attention(query, key, value)
        return attn.to_out[1](attn.to_out[0](attended.flatten(2, 3).type_as(query)))
