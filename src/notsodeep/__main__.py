"""``python -m notsodeep`` is the ``notsodeep`` command."""

import os
import sys


def main() -> None:
    """Run the command; interrupted while it is still loading, it ends without a trace, too."""
    if sys.stderr is None:  # closed: what is imported, NumPy 2.0 among it, expects one
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - it stays open
    try:
        from notsodeep import cli

        cli.main()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
