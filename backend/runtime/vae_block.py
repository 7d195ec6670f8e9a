"""One block of the VAE's ViT decoder with fused steps: packed q, k, v, and the float32 residual in one pass a norm.

Keeps the released mixed precision (norms, scales and residual float32, products in the block's type); tiles are not
known here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from backend.runtime.ops import Norm, QkNorm

if TYPE_CHECKING:
    from backend.runtime.triton_ops import TritonOps


class FastVitBlock(nn.Module):
    """Same call as diffusers' `MiniMaxH3VideoTransformerBlock`, same parameters; may overwrite its input."""

    qkv: Tensor  # (3 * inner, width)
    qkv_bias: Tensor

    def __init__(self, block: Any, attention: Callable[[Tensor, Tensor, Tensor], Tensor], ops: TritonOps) -> None:
        super().__init__()
        attn = block.attn
        self.block: Any = block
        self.heads: int = attn.heads
        self._attention = attention
        self._ops = ops
        projections = (attn.to_q, attn.to_k, attn.to_v)
        # Buffers, so that they move with the module; the block's own parameters become views of them.
        self.register_buffer("qkv", torch.cat([each.weight.detach() for each in projections]), persistent=False)
        self.register_buffer("qkv_bias", torch.cat([each.bias.detach() for each in projections]), persistent=False)
        inner = attn.to_q.out_features
        for place, each in enumerate(projections):
            each.weight.data = self.qkv[place * inner : (place + 1) * inner]
            each.bias.data = self.qkv_bias[place * inner : (place + 1) * inner]
        self._norm1 = Norm(block.norm1.weight, block.norm1.eps)
        self._norm2 = Norm(block.norm2.weight, block.norm2.eps)
        self._qk = QkNorm(None, None, attn.norm_q.eps)

    def forward(self, hidden_states: Tensor, rotary_emb: tuple[Tensor, Tensor]) -> Tensor:
        """(tiles, tokens, width) -> the same shape in float32, one block later."""
        block, ops = self.block, self._ops
        tiles, tokens, width = hidden_states.shape
        kind = self.qkv.dtype
        # The angles are the same for every tile.
        cos, sin = (part[0, :, 0].to(kind).contiguous() for part in rotary_emb)
        # The first block gets the projection's type; the float32 scales make the residual float32 from there on.
        x = hidden_states.to(torch.float32).view(tiles * tokens, width)
        h = ops.scale_norm(x, None, None, self._norm1, kind)
        qkv = functional.linear(h, self.qkv, self.qkv_bias)
        query, key, value = ops.qk_norm_rope(qkv, self.heads, self._qk, (cos, sin))
        query, key, value = (part.unflatten(0, (tiles, tokens)) for part in (query, key, value))
        attended = self._attention(query, key, value).reshape(tiles * tokens, -1)
        h = block.attn.to_out[0](attended)
        h = ops.scale_norm(x, h, block.scale1, self._norm2, kind)
        h = block.ff.net[2](ops.swiglu(block.ff.net[0].proj(h)))
        ops.scale_norm(x, h, block.scale2, None, kind)
        return x.view(tiles, tokens, width)
