"""What this machine has and what a request costs on it, in reading order: `probe`, `choose`, `model_size`,
`request_shape`, `placement`, `rates`, `forecast`, `topology`, `machine_view`, `report`.

Nothing here creates a CUDA context, imports torch or starts a job; only `probe` looks at the machine.
"""
