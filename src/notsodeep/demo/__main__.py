"""``python -m notsodeep.demo``."""

import matplotlib

from . import main

if __name__ == "__main__":
    matplotlib.use("Agg")
    main()
