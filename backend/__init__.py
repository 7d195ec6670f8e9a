"""The half of H3 Studio that owns jobs, processes and GPUs. It knows nothing of the page.

Read in this order: `types`, `events`, `errors`, `limits`, `codec` (what everything speaks), `presets` and `settings`
(what can be configured), `api` (the only door in, put together from `door`), then `jobs`, `engines`, `process`,
`worker`, `h3`, `runtime`. Only the last three import torch; the process that serves the page never imports those.
"""
