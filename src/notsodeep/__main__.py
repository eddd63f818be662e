"""``python -m notsodeep`` is the ``notsodeep`` command."""

from notsodeep.cli import main

if __name__ == "__main__":
    main()
