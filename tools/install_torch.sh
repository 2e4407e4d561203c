#!/bin/sh
# Installs the pinned torch with the given pip: the CPU build (about 200 MB) unless TORCH=cuda asks for the
# CUDA build (several GB). The first source that has the CPU build wins.
set -eu
pip=$1
version=2.13.0
if [ "${TORCH:-cpu}" = cuda ]; then
    exec "$pip" install --quiet "torch==$version"
fi
"$pip" install --quiet "torch==$version+cpu" 2>/dev/null ||
    "$pip" install --quiet --extra-index-url https://download.pytorch.org/whl/cpu "torch==$version+cpu" 2>/dev/null ||
    "$pip" install --quiet "torch==$version"
