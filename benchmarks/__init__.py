"""Speed, as ratios within one run. ``make bench`` runs all of them; ``python -m benchmarks.kernels`` one."""
