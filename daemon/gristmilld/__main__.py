"""``python -m gristmilld`` is the command ``gristmilld``."""

from gristmilld.cli import main

if __name__ == "__main__":
    main()
