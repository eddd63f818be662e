"""``python -m notsodeep`` is the ``notsodeep`` command."""

import sys


def main() -> None:
    """Run the command; an interruption while it is still loading ends it without a trace, too."""
    try:
        from notsodeep.cli import main as command

        command()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
