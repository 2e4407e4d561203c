"""`python -m engine --fd N`: the engine process, started by the app with one end of a socket
pair."""

import argparse
import sys

import kernels
from engine.worker import main

if __name__ == "__main__":
    if "quantise" not in (kernels.__doc__ or ""):
        sys.exit(
            f"engine: the package 'kernels' at {kernels.__file__} is not dsv4chat's; "
            "uninstall the other one, or start from dsv4chat's own environment"
        )
    parser = argparse.ArgumentParser(prog="python -m engine", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="inherited socket of the app")
    sys.exit(main(parser.parse_args().fd))
