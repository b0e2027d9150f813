"""``python -m gristmill`` is `producer`."""

from gristmill.cli import main

if __name__ == "__main__":
    main()
