"""`python -m gem_openrlhf`: see `gem_openrlhf.launcher`."""

from gem_openrlhf.launcher import main

if __name__ == "__main__":
    main()
