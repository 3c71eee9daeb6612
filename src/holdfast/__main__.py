"""`python -m holdfast` is the command `holdfast`."""

from holdfast.interfaces.cli.app import main

if __name__ == "__main__":
    main()
