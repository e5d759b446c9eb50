"""`python -m onward` is the same program as `onward`."""

from onward.cli import main

if __name__ == "__main__":
    main()
