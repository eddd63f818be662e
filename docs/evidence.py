"""The numbers behind the corrections in theory.md; writes results/rejected_variants.json."""

from __future__ import annotations

import json
from pathlib import Path

from notsodeep.experiments.rejected_variants import rejected_variants

DIMENSIONS = (250, 500, 1000, 2000)

if __name__ == "__main__":
    found = rejected_variants("relu", dimensions=DIMENSIONS, seeds=2)
    document = {
        "command": "python docs/evidence.py",
        "activation": "relu",
        "sigma_a2": 0.2,
        "mixture": "near_means",
        "dimensions": DIMENSIONS,
        "points_per_dimension": 1.25,
        "seeds": 2,
        "curves": {name: curve.to_dict() for name, curve in found.items()},
    }
    path = Path(__file__).resolve().parents[1] / "results" / "rejected_variants.json"
    path.write_text(json.dumps(document, indent=1) + "\n")
