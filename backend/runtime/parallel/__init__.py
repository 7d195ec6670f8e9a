"""One job over several ranks, in reading order: `group`, `rows`, `ulysses`, `overlap`, `tensor_parallel`, `fsdp`,
`ranks`, `conditioner`, `vae`, `sharing`.

Wraps the parts that one rank runs with; never decides what is computed, how many ranks there are or when to stop.
"""
