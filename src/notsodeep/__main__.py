"""``python -m notsodeep`` is the ``notsodeep`` command."""

import sys


def main() -> None:
    """Run the command; interrupted while it is still loading, it ends without a trace, too."""
    try:
        from notsodeep import cli

        cli.main()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
