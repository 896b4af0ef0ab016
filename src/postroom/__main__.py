"""`python -m postroom` is the command `postroom`."""

from postroom.cli import main

if __name__ == "__main__":
    main()
