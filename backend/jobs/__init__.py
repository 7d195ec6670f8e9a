"""Durable jobs, from their rows on the disk to the dispatcher that hands them to engines.

Read in this order: `records`, `rows`, `store`, `artifacts` (a job's folder), `line`, `runner`, `manager` (dispatch),
`intake`. Nothing here knows what a page is or how an engine renders.
"""
