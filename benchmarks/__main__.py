"""Run every benchmark of this folder one after the other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

if __name__ == "__main__":
    names = sorted(p.stem for p in Path(__file__).parent.glob("*.py") if not p.stem.startswith("_"))
    chosen = sys.argv[1:] or names
    failed = [name for name in chosen if subprocess.run([sys.executable, "-m", f"benchmarks.{name}"]).returncode]
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)
