"""``python -m presetbuild``."""

from presetbuild.cli import main

if __name__ == "__main__":
    main()
