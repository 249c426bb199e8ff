"""`python -m toolchain` is the console script."""

from toolchain.cli.app import main

if __name__ == "__main__":
    main()
