"""Durable jobs: `store` (SQLite rows and their event log), `artifacts` (a job's folder), `manager` (queue and dispatch).

Read them in that order. Nothing here knows what a page is or how an engine renders.
"""
