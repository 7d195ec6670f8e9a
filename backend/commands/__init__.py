"""What the command line does beyond parsing: `state` (before anything), `generation` (generate), `reports` (the rest).

Speaks to `Backend`, the catalog and media; knows neither argparse nor the page.
"""
