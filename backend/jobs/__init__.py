"""Durable jobs: `records`, `store`, `artifacts` (a job's folder), `line`, `runner`, `manager` (dispatch), `intake`.

Read them in that order. Nothing here knows what a page is or how an engine renders.
"""
