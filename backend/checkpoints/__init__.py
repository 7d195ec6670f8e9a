"""Checkpoints on disk, in reading order: `layout`, `catalog`, for the built-in tiny model `tokenizer` and `nano`; then
`adapters` and `adapter_shelf`; for downloads `parts`, `hub_cache`, `errands`, `fetch`, `errand_child`, `weights`.

The catalog reads JSON and file sizes only; building the tiny model needs torch and happens in a child process.
"""
