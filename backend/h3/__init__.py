"""WHAT is computed, in reading order: `seams`, `components`, `conditioning`, `layout`, `schedule`, `denoise`, `decode`,
`pipeline`.

Built on diffusers' modular MiniMax-H3 blocks. Never imports `runtime`: attention, tables and residency are handed in.
"""
