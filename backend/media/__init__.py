"""Media in and out. Files from users are hostile until decoded; nothing here knows jobs, models or torch.

In, from the outside: `prepare` (a request), `probe` (before queueing) and `inspection` (for people) hand one file each
to `sandbox`, a child with few rights (`confine`). In the child, `source` and `sniff` tell by content what a file is,
`readers` sends it to `images`, or through `containers` to `videos` (`timeline`, `colour`) and `audio` (`riff`);
`glimpse` makes small pictures of it for people.
Out: `mp4` writes the result (`boxes` orders the file, `growing` is its twin for watching, `unbuffered` what both write
to), `checks` judges it while it is written.
"""
