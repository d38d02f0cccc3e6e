"""OpenMP's threads sleep while they wait: on a shared machine, spinning ones slow each other down."""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "10000")
