"""Ways to render a request: `base` (the protocol), `native` (our own fleet), `stub` (real processes, pretend model),
`remote` (a server elsewhere, through `videos_client`).

An engine knows processes and events; it does not know jobs, queues or pages.
"""
