"""`python -m inferswarm`: the command line."""

from inferswarm.cli import main

if __name__ == "__main__":
    main()
