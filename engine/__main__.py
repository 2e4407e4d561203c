"""`python -m engine --fd N`: the engine process, started by the app with a socket of its own."""

import argparse
import sys
from pathlib import Path

import kernels
from engine.worker import main

if __name__ == "__main__":
    # Hugging Face has a package of the same name; ours lies beside this one.
    if Path(kernels.__path__[0]).parent != Path(__file__).parents[1]:
        sys.exit(
            f"engine: the package 'kernels' at {kernels.__path__[0]} is not dsv4chat's; "
            "start from dsv4chat's own environment, or uninstall the other one"
        )
    parser = argparse.ArgumentParser(prog="python -m engine", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="inherited socket of the app")
    sys.exit(main(parser.parse_args().fd))
