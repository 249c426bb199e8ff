"""Run the console script as `python -m toolchain`."""

from toolchain.cli.app import main

if __name__ == "__main__":
    main()
