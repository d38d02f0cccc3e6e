"""Waiting OpenMP threads sleep: on a shared machine, spinning ones slow each other down."""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "1000")
